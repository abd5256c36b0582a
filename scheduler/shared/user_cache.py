"""Where this user's caches are."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def user_cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for this user's caches on this platform. Creates nothing."""
    if xdg := environment.get("XDG_CACHE_HOME"):
        return Path(xdg) / "penstock"
    home = Path(environment.get("HOME") or os.path.expanduser("~"))
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "penstock"
    return home / ".cache" / "penstock"
