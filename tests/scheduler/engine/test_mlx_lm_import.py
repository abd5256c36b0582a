"""An engine imports mlx-lm without what reads tokenizers, and masks tokens all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.models.random_qwen3 import TINY, write_model

_STARTED = """
import json, sys
from pathlib import Path
from scheduler.engine.backend_choice import make_backend
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


def test_an_engine_loads_no_library_of_tokenizers(folder: Path) -> None:
    """Every restart would wait for them."""
    program = """
make_backend(load_of(folder), lambda stage: None)
left_out = ("httpx", "huggingface_hub", "jinja2", "transformers", "trio")
print([name for name in left_out if name in sys.modules], "mlx_lm.generate" in sys.modules)
"""
    assert _printed(program, folder) == "[] True"


def test_they_can_be_imported_afterwards(folder: Path) -> None:
    program = """
make_backend(load_of(folder), lambda stage: None)
import huggingface_hub, transformers
from mlx_lm import tokenizer_utils
print(huggingface_hub.snapshot_download.__module__, transformers.__version__ > "5")
print(len(tokenizer_utils.load(folder).encode("hello")) > 0)
"""
    assert _printed(program, folder).split() == ["huggingface_hub._snapshot_download", "True", "True"]


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


def test_grammars_have_the_tokens_that_the_server_sends(folder: Path) -> None:
    """And without them, a request with a grammar is refused."""
    program = """
from llguidance import LLMatcher
for tokenizer in (HubTokenizer(folder).for_grammars(), None):
    backend = make_backend(load_of(folder, tokenizer=tokenizer), lambda stage: None)
    found = backend._grammars._tokenizer
    print(found is not None and found.tokenize_str("hello") == HubTokenizer(folder).encode("hello"))
"""
    assert _printed(program, folder).split() == ["True", "False"]
