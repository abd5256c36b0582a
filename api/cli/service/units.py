"""systemd's units, the service's and its sockets', and launchd's property list: templates, and what depends
on the service's options."""

from __future__ import annotations

import plistlib
import re
from collections.abc import Sequence
from typing import Any

from api.cli.service.service_options import ServiceFiles, ServiceOptions, label

_RESTART_SECONDS = 5
_STOP_MARGIN_SECONDS = 15
"""Time after the drain until systemd or launchd kills what is left."""
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$", "\t": "\\t"})
_PLAIN = re.compile(r"[A-Za-z0-9_./=:,+@-]+")

_UNIT = """\
# Written by penstock service install, which writes it anew; your own settings go into
# systemctl{scope} edit {name}
[Unit]
Description=Penstock
{needs}

[Service]
{kind}
ExecStart={command}
RestartSec={restart_seconds}
# A refused option would be refused again.
RestartPreventExitStatus=2
# Loading a model, or fetching it first, takes minutes.
TimeoutStartSec=infinity
TimeoutStopSec={stop_seconds}
# SIGTERM, for the drain, goes to the main process only; the SIGKILL in the end goes to all.
KillMode=mixed
UMask=0077
NoNewPrivileges=yes
# Connections and engines; the server lowers its limits to what it gets.
LimitNOFILE=65536
{bounds}

[Install]
WantedBy={target}
"""
# The sockets come first, and stay when the service ends. What cannot be loaded is not retried without end.
_SERVER_NEEDS = """\
Requires={name}.socket
After={name}.socket
StartLimitIntervalSec=600
StartLimitBurst=5"""
_SERVER = "Type=notify\nNotifyAccess=main\nWatchdogSec=120\nRestart=on-failure"
# An engine waits for its server without end, which says when it has joined.
_ENGINE_NEEDS = "StartLimitIntervalSec=0"
_ENGINE = "Type=exec\nRestart=always"
_NETWORK = "\nWants=network-online.target\nAfter=network-online.target"
"""A user's systemd has no such unit."""

_SOCKET = """\
# Written by penstock service install, which writes it anew
[Unit]
Description=Connections of Penstock

[Socket]
{addresses}
# IPv4 and IPv6 addresses are listed separately, as the server would listen on them.
BindIPv6Only=ipv6-only
# systemd keeps the sockets open, so that connections wait here while no process serves.
Backlog=4096
{at_boot}

[Install]
WantedBy=sockets.target
"""


def unit_text(options: ServiceOptions) -> str:
    """Return the unit. It has neither keys nor arguments: the process reads them from the service's files."""
    bounds = [] if options.run_as is None else [f"User={options.run_as}"]
    if (most := options.memory_max_bytes) is not None:
        # Above MemoryHigh systemd slows the service down before MemoryMax ends it.
        bounds += [f"MemoryHigh={most * 95 // 100}", f"MemoryMax={most}"]
    needs = _ENGINE_NEEDS if options.engine else _SERVER_NEEDS.format(name=options.name)
    return _UNIT.format(
        scope="" if options.system else " --user",
        name=options.name,
        needs=needs + (_NETWORK if options.system else ""),
        kind=_ENGINE if options.engine else _SERVER,
        command=" ".join(map(quoted, _command(options))),
        restart_seconds=_RESTART_SECONDS,
        stop_seconds=int(options.drain_seconds) + _STOP_MARGIN_SECONDS,
        bounds="\n".join(bounds),
        target="multi-user.target" if options.system else "default.target",
    )


def socket_text(options: ServiceOptions) -> str:
    """Return the unit of the sockets. The machine's are open at boot before it has its address."""
    addresses = "\n".join(f"ListenStream={address}" for address in options.addresses)
    return _SOCKET.format(addresses=addresses, at_boot="FreeBind=yes" if options.system else "")


def plist(options: ServiceOptions, places: ServiceFiles) -> str:
    """Return the property list, of which the same holds."""
    entries: dict[str, Any] = {
        "Label": label(options.name),
        "ProgramArguments": _command(options),
        "RunAtLoad": True,
        "KeepAlive": True if options.engine else {"SuccessfulExit": False},
        "ThrottleInterval": _RESTART_SECONDS,
        "ExitTimeOut": int(options.drain_seconds) + _STOP_MARGIN_SECONDS,
        # No background throttling of I/O or CPU.
        "ProcessType": "Interactive",
        "Umask": 0o077,
        "SoftResourceLimits": {"NumberOfFiles": 10240},
        "StandardErrorPath": str(places.crash_log),
    }
    if options.run_as is not None:
        entries["UserName"] = options.run_as
    if not options.system:
        # Also in the domain of a user who is logged in by ssh alone: a machine without a screen has no other.
        entries["LimitLoadToSessionType"] = ["Aqua", "Background"]
    return plistlib.dumps(entries, sort_keys=False).decode()


def _command(options: ServiceOptions) -> Sequence[str]:
    scope = ["--system"] if options.system else []
    return [*options.program, "service", "run", "--name", options.name, *scope]


def quoted(word: str) -> str:
    """Quote a word so that systemd reads it unchanged: no specifier (%), no variable ($), no split."""
    return word if _PLAIN.fullmatch(word) else f'"{word.translate(_ESCAPES)}"'
