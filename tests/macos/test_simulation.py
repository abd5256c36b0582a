"""The simulated Mac behaves as Apple's sources say that a Mac does, in what our code relies on."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from loadtests.processes import is_gone
from tests.end_to_end.serving import eventually
from tests.macos.__main__ import DESCRIPTORS, SIMULATED
from tests.macos.simulated import MOST_PATH_BYTES, PAIR_BYTES, RELEASE

pytestmark = pytest.mark.skipif(os.environ.get(SIMULATED) != "1", reason="run by test_parts.py")


def test_the_system_says_that_it_is_darwin() -> None:
    assert (sys.platform, platform.system(), platform.mac_ver()[0]) == ("darwin", "Darwin", RELEASE)
    program = "import api, tests.macos.test_simulation as it; print(it.sys.platform)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout == "darwin\n"


def test_what_a_test_sets_is_seen_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of systemd's branches run on a Mac, too."""
    monkeypatch.setattr("sys.platform", "linux")
    assert sys.platform == "linux"
    monkeypatch.undo()
    assert sys.platform == "darwin"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (os, "sched_getaffinity"),
        (time, "CLOCK_BOOTTIME"),
        (socket, "TCP_KEEPIDLE"),
        (resource, "prlimit"),
        (ctypes.CDLL(None), "malloc_trim"),
    ],
)
def test_linux_names_are_absent(module: object, name: str) -> None:
    assert not hasattr(module, name)


def test_there_is_no_proc() -> None:
    assert not Path("/proc").exists()
    for look in (os.stat, os.listdir, os.scandir, io.open):
        with pytest.raises(FileNotFoundError):
            look("/proc/self/statm")


def test_sockets() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(OSError, match="Protocol") as refused,
    ):
        listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    assert refused.value.errno == errno.ENOPROTOOPT
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            assert ours.getsockopt(socket.SOL_SOCKET, option) <= PAIR_BYTES
    with socket.socket(socket.AF_UNIX) as local, pytest.raises(OSError, match="too long"):
        local.bind("/tmp/" + "x" * (MOST_PATH_BYTES - 4))


def test_a_group_of_zombies_may_not_be_signalled() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as child:
        os.killpg(child.pid, signal.SIGKILL)
        eventually(lambda: is_gone(child.pid))
        with pytest.raises(PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def test_limits_of_a_session() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == DESCRIPTORS
    assert len(tempfile.gettempdir()) > 49


def test_ps_is_bsds() -> None:
    """It knows neither nlwp nor long options, and prints a header for a process that is gone."""
    for refused in (("-o", "nlwp="), ("--no-headers",)):
        assert subprocess.run(["ps", *refused], capture_output=True, check=False).returncode == 1
    with subprocess.Popen(["sleep", "0"]) as gone:
        pass
    listed = subprocess.run(["ps", "-M", "-p", str(gone.pid)], capture_output=True, text=True, check=False)
    assert (listed.returncode, len(listed.stdout.splitlines())) == (1, 1)
