"""mlx-lm's chat templates, imported without MLX.

`import mlx_lm` loads MLX, which the server must not do: it would take GPU memory a second time, and a Metal
error would end it. The modules used here need only `regex` and `transformers`, so they are imported from
mlx-lm's folder under another package name, without mlx-lm's `__init__`. The parts used are tested by
`tests/scheduler/answer/test_mlx_lm_parts.py`.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "mlx_lm_without_mlx"

MODEL_DEFAULTS: dict[str, dict[str, str]] = {
    "muse_spark": {"chat_template_type": "muse_spark", "tool_parser_type": "muse_spark"}
}
"""Tokenizer defaults of mlx-lm's model classes (`models/*.py`, which need MLX), by model_type."""


@cache
def _folder() -> Path:
    # Finding a top-level package does not run it.
    spec = find_spec("mlx_lm")
    assert spec is not None
    assert spec.submodule_search_locations, "mlx-lm is a requirement"
    folder = Path(spec.submodule_search_locations[0])
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(folder)]
    sys.modules[_PACKAGE] = package
    return folder


def chat_template(name: str) -> Any:
    """Return a module with `apply_chat_template` or `RESPONSE_FORMAT`, or both. Raise ImportError."""
    _folder()
    return import_module(f"{_PACKAGE}.chat_templates.{name}")
