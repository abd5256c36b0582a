"""mlx-lm's tool parsers and chat templates, imported without MLX.

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

from scheduler.answer.bounded_regex import limit_module

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


def tool_parser_names() -> tuple[str, ...]:
    names = (path.stem for path in (_folder() / "tool_parsers").glob("*.py"))
    return tuple(sorted(name for name in names if not name.startswith("_")))


def tool_parser(name: str) -> Any:
    """Return a module with `parse_tool_call`, `tool_call_start` and `tool_call_end`, whose matching obeys
    `time_limit`."""
    assert name in tool_parser_names()
    package = f"{_PACKAGE}.tool_parsers"
    parser = import_module(f"{package}.{name}")
    # In all loaded modules: some use parts of others.
    for loaded in [module for key, module in sys.modules.items() if key.startswith(f"{package}.")]:
        limit_module(loaded)
    return parser


def chat_template(name: str) -> Any:
    """Return a module with `apply_chat_template` or `RESPONSE_FORMAT`, or both. Raise ImportError."""
    _folder()
    return import_module(f"{_PACKAGE}.chat_templates.{name}")


def inferred_tool_parser(tokenizer: Any) -> str | None:
    """Infer the parser from the chat template, else from the vocabulary, as mlx-lm does."""
    name: str | None = _tokenizer_utils()._infer_tool_parser(tokenizer)
    return name


def inferred_thinking(tokenizer: Any) -> tuple[str, str] | None:
    """Return the marks around a model's reasoning."""
    start, end, _, _ = _tokenizer_utils()._infer_thinking(tokenizer)
    return None if start is None else (start, end)


def inferred_structural_markers(tokenizer: Any) -> tuple[str, ...]:
    """Return marks that are neither text nor the start of a section."""
    return tuple(_tokenizer_utils()._infer_structural_markers(tokenizer))


def _tokenizer_utils() -> Any:
    _folder()
    return import_module(f"{_PACKAGE}.tokenizer_utils")
