"""Functions of mlx-lm that all its models call, in whose place ours are called."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def replace(home: ModuleType, name: str, ordinary: Any, ours: Any) -> None:
    """In models that are loaded later, and in those that are: they import the function by name, so they hold
    the original themselves."""
    setattr(home, name, ours)
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("mlx_lm.models.") and vars(module).get(name) is ordinary:
            setattr(module, name, ours)
