"""The texts of systemd's units, the service's and its sockets', and launchd's property list, as functions of
the service's options alone."""

from __future__ import annotations

import plistlib
from collections.abc import Sequence
from typing import Any

from api.cli.service.service_options import Restart, ServiceFiles, ServiceOptions, label, run_command

_STOP_MARGIN_SECONDS = 15
"""Time after the drain until systemd or launchd kills what is left."""
_ESCAPES = {"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$", "\t": "\\t"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@")


def unit_text(options: ServiceOptions, places: ServiceFiles) -> str:
    """Return the unit. It has no key: the process reads them from the environment file."""
    lines = [
        "# Written by penstock service install, which writes it anew; your own settings go into",
        f"# systemctl {'' if options.system else '--user '}edit {options.name}",
        "[Unit]",
        f"Description=Penstock, {'an engine' if options.engine else 'a server of language models'}",
        # The sockets come first, and stay when the service ends.
        *([] if options.engine else [f"Requires={options.name}.socket", f"After={options.name}.socket"]),
        # A user's systemd has no such unit.
        *(["Wants=network-online.target", "After=network-online.target"] if options.system else []),
        # A model that cannot be loaded must not be retried without end. An engine restarts without a limit.
        f"StartLimitIntervalSec={0 if options.engine else 600}",
        "StartLimitBurst=5",
        "",
        "[Service]",
        # An engine does not notify systemd: its server says when it has joined.
        *(["Type=exec"] if options.engine else ["Type=notify", "NotifyAccess=main"]),
        f"ExecStart={_command(run_command(options, places))}",
        f"Restart={options.restart}",
        f"RestartSec={options.restart_seconds}",
        # A refused option would be refused again.
        "RestartPreventExitStatus=2",
        # Loading a model, or fetching it first, has its own limit: --ready-seconds.
        "TimeoutStartSec=infinity",
        f"TimeoutStopSec={int(options.drain_seconds) + _STOP_MARGIN_SECONDS}",
        *([] if options.engine else ["WatchdogSec=120"]),
        # SIGTERM, for the drain, goes to the main process only; the SIGKILL in the end goes to all.
        "KillMode=mixed",
        "UMask=0077",
        "NoNewPrivileges=yes",
        # Connections and engines; the server lowers its limits to what it gets.
        "LimitNOFILE=65536",
    ]
    if options.run_as is not None:
        lines.append(f"User={options.run_as}")
    if options.memory_max_bytes is not None:
        # Above MemoryHigh systemd slows the service down before MemoryMax ends it.
        lines += [
            f"MemoryHigh={options.memory_max_bytes * 95 // 100}",
            f"MemoryMax={options.memory_max_bytes}",
        ]
    target = "multi-user.target" if options.system else "default.target"
    lines += ["", "[Install]", f"WantedBy={target}"]
    return "\n".join(lines) + "\n"


def socket_text(options: ServiceOptions) -> str:
    """Return the unit of the sockets. systemd keeps them open, so connections that come while no process
    serves wait in their backlog."""
    lines = [
        "# Written by penstock service install, which writes it anew",
        "[Unit]",
        "Description=Connections of Penstock",
        "",
        "[Socket]",
        *(f"ListenStream={address}" for address in options.addresses),
        # IPv4 and IPv6 addresses are listed separately, as the server would listen on them.
        "BindIPv6Only=ipv6-only",
        "Backlog=4096",
        # At boot the sockets open before the machine has its address.
        *(["FreeBind=yes"] if options.system else []),
        "",
        "[Install]",
        "WantedBy=sockets.target",
    ]
    return "\n".join(lines) + "\n"


def _command(words: Sequence[str]) -> str:
    return " ".join(map(quoted, words))


def quoted(word: str) -> str:
    """Quote a word so that systemd reads it unchanged: no specifier (%), no variable ($), no split."""
    if word and _PLAIN.issuperset(word):
        return word
    return '"' + "".join(_ESCAPES.get(letter, letter) for letter in word) + '"'


def plist(options: ServiceOptions, places: ServiceFiles) -> bytes:
    """Return the property list. It has no key: the process reads them from the environment file."""
    entries: dict[str, Any] = {
        "Label": label(options.name),
        "ProgramArguments": run_command(options, places),
        "RunAtLoad": True,
        "ThrottleInterval": options.restart_seconds,
        "ExitTimeOut": int(options.drain_seconds) + _STOP_MARGIN_SECONDS,
        # No background throttling of I/O or CPU.
        "ProcessType": "Interactive",
        "Umask": 0o077,
        "SoftResourceLimits": {"NumberOfFiles": 10240},
    }
    match options.restart:
        case Restart.ALWAYS:
            entries["KeepAlive"] = True
        case Restart.ON_FAILURE:
            entries["KeepAlive"] = {"SuccessfulExit": False}
        case Restart.NO:
            pass
    if not options.system:
        # Also in the domain of a user who is logged in by ssh alone: a machine without a screen has no other.
        entries["LimitLoadToSessionType"] = ["Aqua", "Background"]
    if options.run_as is not None:
        entries["UserName"] = options.run_as
    if places.log is not None:
        # Only for errors before the service opens its log, or when it cannot.
        entries["StandardErrorPath"] = str(places.log.with_suffix(".crash.log"))
    return plistlib.dumps(entries, sort_keys=False)
