"""An engine imports mlx-lm without what reads tokenizers, and masks tokens all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scheduler.models.random_qwen3 import TINY, write_model

_STARTED = """
import json, sys
from pathlib import Path
from scheduler.engine.__main__ import make_backend
from scheduler.prompt.tokenizer import HubTokenizer
from tests.scheduler.engine.mlx.loads import load_of

folder = Path(sys.argv[1])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "tiny"
    write_model(TINY, made)
    return made


def _printed(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _STARTED + program, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_ENGINES = """
def tokens_of(backend):
    return backend._grammars._tokenizer

without = make_backend(load_of(folder), lambda stage: None)
left_out = ("httpx", "huggingface_hub", "jinja2", "transformers", "trio")
loaded = [name for name in left_out if name in sys.modules]
generates = "mlx_lm.generate" in sys.modules
tokenizer = HubTokenizer(folder)
told = make_backend(load_of(folder, tokenizer=tokenizer.for_grammars()), lambda stage: None)
grammars = [
    tokens_of(told).tokenize_str("hello") == tokenizer.encode("hello"),
    tokens_of(without) is not None,
]
import huggingface_hub, transformers
from mlx_lm import tokenizer_utils
print(json.dumps({
    "loaded": loaded,
    "generates": generates,
    "grammars": grammars,
    "snapshot_download": huggingface_hub.snapshot_download.__module__,
    "transformers": transformers.__version__,
    "hello": tokenizer_utils.load(folder).encode("hello"),
}))
"""


@pytest.fixture(scope="module")
def said(folder: Path) -> Any:
    """What a process says that has made engines, one with a tokenizer for grammars and one without."""
    return json.loads(_printed(_ENGINES, folder))


def test_an_engine_loads_no_library_of_tokenizers(said: Any) -> None:
    """Every restart would wait for them."""
    assert said["loaded"] == []
    assert said["generates"]


def test_they_can_be_imported_afterwards(said: Any) -> None:
    assert said["snapshot_download"] == "huggingface_hub._snapshot_download"
    assert said["transformers"] > "5"
    assert said["hello"]


def test_what_mlx_lm_has_already_is_left_as_it_is(folder: Path) -> None:
    program = """
import mlx_lm.utils, transformers
before = dict(sys.modules)
from scheduler.engine.mlx_lm_import import without_tokenizers
with without_tokenizers():
    assert sys.modules["transformers"] is transformers
assert all(sys.modules[name] is module for name, module in before.items())
print(mlx_lm.utils.TokenizerWrapper.__module__)
"""
    assert _printed(program, folder) == "mlx_lm.tokenizer_utils"


def test_grammars_have_the_tokens_that_the_server_sends(said: Any) -> None:
    """And without them, a request with a grammar is refused."""
    assert said["grammars"] == [True, False]
