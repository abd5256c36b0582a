"""A gate for calls of the disk's thread: they wait until a test releases them."""

from __future__ import annotations

import threading

import pytest

from scheduler.engine.disk.disk_folder import DiskFolder
from tests.scheduler.engine.disk.disk_contents import SOON


class Gate:
    """Holds a call of the disk's thread until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        real = getattr(DiskFolder, call)

        def wait(*arguments: object) -> object:
            self.reached.set()
            assert self.opened.wait(SOON)
            return real(*arguments)

        monkeypatch.setattr(DiskFolder, call, wait)
