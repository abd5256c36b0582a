"""An engine imports mlx-lm without what reads tokenizers, and masks tokens all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scheduler.models.random_qwen3 import TINY, write_model

_ENGINES = """
import json, sys
from pathlib import Path
from scheduler.engine.__main__ import make_backend
from scheduler.prompt.tokenizer import HubTokenizer
from tests.scheduler.engine.mlx.loads import load_of

def tokens_of(backend):
    return backend._grammars._tokenizer

folder = Path(sys.argv[1])
without = make_backend(load_of(folder), lambda stage: None)
left_out = ("httpx", "huggingface_hub", "jinja2", "transformers", "trio")
loaded = [name for name in left_out if name in sys.modules]
tokenizer = HubTokenizer(folder)
told = make_backend(load_of(folder, tokenizer=tokenizer.for_grammars()), lambda stage: None)
grammars = [tokens_of(told).tokenize_str("hello") == tokenizer.encode("hello"), tokens_of(without) is None]
import huggingface_hub, transformers
from mlx_lm import tokenizer_utils
print(json.dumps({
    "loaded": loaded,
    "grammars": grammars,
    "afterwards": [huggingface_hub.snapshot_download.__module__, transformers.__version__ > "5"],
    "hello": bool(tokenizer_utils.load(folder).encode("hello")),
}))
"""


def test_an_engine_loads_no_library_of_tokenizers(tmp_path: Path) -> None:
    """Every restart would wait for them. They can be imported afterwards, and grammars have the tokens that
    the server sends: without them, none."""
    write_model(TINY, tmp_path / "tiny")
    done = subprocess.run(
        [sys.executable, "-c", _ENGINES, str(tmp_path / "tiny")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "loaded": [],
        "grammars": [True, True],
        "afterwards": ["huggingface_hub._snapshot_download", True],
        "hello": True,
    }
