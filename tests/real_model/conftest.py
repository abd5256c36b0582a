"""The real model's folder, and a server with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.serving import Served, serving
from tests.real_model.folder import real_model


@pytest.fixture(scope="session")
def folder() -> Path:
    return real_model()


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    """As it is served where no model is named."""
    with serving(default=True) as found:
        yield found
