"""What ends a process ends its group, too; macOS answers EPERM where nothing but zombies is left of it."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import NoReturn

import pytest
import trio
from trio.testing import trio_test

from api.cli import started_server
from loadtests import launch


@pytest.fixture(autouse=True)
def zombies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the members of a group have been reaped is a matter of moments."""

    def refuse(*_: int) -> NoReturn:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)


def test_a_server_that_a_command_has_started() -> None:
    child = subprocess.Popen(["sleep", "600"])
    started_server._end(child)
    assert child.returncode is not None


@trio_test
async def test_a_server_under_load() -> None:
    process = await trio.lowlevel.open_process(["sleep", "600"])
    assert await launch._stop(process, 10.0)
