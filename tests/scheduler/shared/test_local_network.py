"""A refusal of macOS's Local Network privacy is named, and nothing else is taken for one."""

from __future__ import annotations

import errno

import pytest

from scheduler.cluster.ray_engines import check_reachable
from scheduler.engine import dial as dialing
from scheduler.engine.dial import DialFailed, dial
from scheduler.errors import StartupError
from scheduler.shared.local_network import connect_failure

REFUSED = OSError(errno.EHOSTUNREACH, "No route to host")
NAMED = "System Settings > Privacy & Security > Local Network"


@pytest.mark.parametrize(
    ("platform", "error", "address", "named"),
    [
        ("darwin", REFUSED, "192.168.1.20", True),
        ("darwin", REFUSED, "fe80::1%en0", True),
        ("darwin", REFUSED, "mac-1.local", True),
        ("darwin", REFUSED, "8.8.8.8", False),
        ("darwin", OSError(errno.ECONNREFUSED, "Connection refused"), "192.168.1.20", False),
        ("linux", REFUSED, "192.168.1.20", False),
    ],
)
def test_only_macos_only_near_only_this_error(
    platform: str, error: OSError, address: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    said = connect_failure(error, address)
    assert said.startswith(str(error))
    assert (NAMED in said) == named


def test_those_who_dial_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine for a server on another Mac, and who asks Ray's head."""

    def refuse(*_: object, **__: object) -> None:
        raise REFUSED

    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr(dialing, "_PAUSE_SECONDS", 5.0)
    with pytest.raises(DialFailed, match="Local Network"):
        dial(["192.168.1.20"], 9100, "00" * 32, "host", host="mac-2", seconds=0.0)
    with pytest.raises(StartupError, match="Local Network"):
        check_reachable("192.168.1.20:6379")
