"""What ends a process ends its group, too; macOS answers EPERM where nothing but zombies is left of it."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import NoReturn

import pytest

from api.cli import started_server


def test_a_server_that_a_command_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused here by hand: whether the members of a group have been reaped is a matter of moments."""

    def refuse(*_: int) -> NoReturn:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    child = subprocess.Popen(["sleep", "600"])
    started_server._end(child)
    assert child.returncode is not None
