"""What ends a process ends its group, too; macOS answers EPERM where nothing but zombies is left of it."""

from __future__ import annotations

import errno
import os
from typing import NoReturn

import pytest
import trio
from trio.testing import trio_test

from loadtests import launch


@pytest.fixture(autouse=True)
def zombies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the members of a group have been reaped is a matter of moments."""

    def refuse(*_: int) -> NoReturn:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)


@trio_test
async def test_a_server_under_load() -> None:
    process = await trio.lowlevel.open_process(["sleep", "600"])
    assert await launch._stop(process, 10.0)
