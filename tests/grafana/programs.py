"""Prometheus' own programs, where the machine has them."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str) -> str:
    """Its path. Skips where it is not installed, and fails in CI, which installs it."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run {name}, and it is not on the PATH")
        pytest.skip(f"no {name} on the PATH (Debian's package prometheus)")
    return found
