"""Prometheus' own programs, if the machine has them."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str) -> str:
    """Return its path. Skip if it is not installed; fail in CI, which installs it."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run {name}, and it is not on the PATH")
        pytest.skip(f"no {name} on the PATH (Debian's package prometheus)")
    return found
