"""Crowds of clients in one process with the server need more descriptors than the 256 of a Mac's shell."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from api.http.limits import raise_descriptor_limit


@pytest.fixture(autouse=True, scope="module")
def descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit(2048)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
