"""Replaces functions of mlx-lm that all its models call."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def replace(defining: ModuleType, name: str, ordinary: Any, ours: Any) -> None:
    """Replace `defining.name`, for models imported later and for those imported already: they import the
    function by name, so that each module has its own reference."""
    setattr(defining, name, ours)
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("mlx_lm.models.") and vars(module).get(name) is ordinary:
            setattr(module, name, ours)
