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
from types import ModuleType
from typing import Any

from scheduler.shared.folder.mlx_lm_module import package_folder

MODEL_DEFAULTS: dict[str, dict[str, str]] = {
    "muse_spark": {"chat_template_type": "muse_spark", "tool_parser_type": "muse_spark"}
}
"""Tokenizer defaults of mlx-lm's model classes (`models/*.py`, which need MLX), by model_type."""


@cache
def _package() -> str:
    package = ModuleType("mlx_lm_without_mlx")
    package.__path__ = [str(package_folder())]
    sys.modules[package.__name__] = package
    return package.__name__


def chat_template(name: str) -> Any:
    """Return a module with `apply_chat_template` or `RESPONSE_FORMAT`, or both. Raise ImportError."""
    return import_module(f"{_package()}.chat_templates.{name}")
