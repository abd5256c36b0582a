"""The real model's folder, and a server with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.serving import Served, serving
from tests.real_model.folder import SERVED_NAME, real_model


@pytest.fixture(scope="session")
def folder() -> Path:
    return real_model()


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    """As `make real-model` says it is served."""
    with serving("--model", str(folder), "--served-model-name", SERVED_NAME, trained=True) as found:
        yield found
