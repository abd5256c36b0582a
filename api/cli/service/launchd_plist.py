"""launchd's property list of the service, as a function of its options alone."""

from __future__ import annotations

import plistlib
from typing import Any

from api.cli.service.service_options import Places, Restart, ServiceOptions, label, run_command

_STOP_MARGIN_SECONDS = 15
"""Beyond the drain, until launchd kills what is left."""


def plist(options: ServiceOptions, places: Places) -> bytes:
    """Return the file. It has no key: the process reads them from the environment file."""
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
        # Only for what comes before the service opens its log, or instead of it.
        entries["StandardErrorPath"] = str(places.log.with_suffix(".crash.log"))
    return plistlib.dumps(entries, sort_keys=False)
