"""Where this user's caches are, and the data that must not be lost with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def user_cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for this user's caches on this platform. Creates nothing."""
    if xdg := environment.get("XDG_CACHE_HOME"):
        return Path(xdg) / "penstock"
    if sys.platform == "darwin":
        return _home(environment) / "Library" / "Caches" / "penstock"
    else:
        return _home(environment) / ".cache" / "penstock"


def user_data_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for what cannot be had again, such as engines' token. macOS empties Library/Caches
    when the disk is full, and so do cleaners; elsewhere it is the folder of the caches. Creates nothing."""
    if sys.platform == "darwin" and not environment.get("XDG_CACHE_HOME"):
        return _home(environment) / "Library" / "Application Support" / "penstock"
    else:
        return user_cache_folder(environment)


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or os.path.expanduser("~"))
