"""Crowds of clients in one process with the server: more descriptors than the 256 of a Mac's shell."""

from __future__ import annotations

import pytest

from api.http.limits import raise_descriptor_limit


@pytest.fixture(autouse=True, scope="session")
def descriptors() -> None:
    raise_descriptor_limit(2048)
