"""A refusal of macOS's Local Network privacy is named, and nothing else is taken for one."""

from __future__ import annotations

import errno

import pytest

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
