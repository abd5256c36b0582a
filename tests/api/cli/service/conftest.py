"""Commands of a service change their process's environment, which is the tests' here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def an_environment_that_comes_back() -> Iterator[None]:
    """Commands end with their process; what they set must not reach another test, as an API key did."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
