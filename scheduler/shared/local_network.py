"""Why another machine is not reached: macOS asks the user before a program may use the local network."""

from __future__ import annotations

import errno
import sys
from ipaddress import ip_address

_HINT = (
    " (macOS says so, too, where a program may not use the local network: allow it in System Settings >"
    " Privacy & Security > Local Network, or run it as a daemon, which is exempt: penstock service install"
    " --system)"
)


def connect_failure(error: Exception, address: str) -> str:
    """Return why no connection to `address`, a name or an IP address, was made.

    Since macOS 15 a LaunchAgent, tmux or an unsigned program without that permission gets EHOSTUNREACH, "No
    route to host". Terminal, ssh sessions and daemons of root are exempt, so that it works where it is tried
    by hand.
    """
    is_refusal = isinstance(error, OSError) and error.errno == errno.EHOSTUNREACH
    if sys.platform == "darwin" and is_refusal and _is_near(address):
        return str(error) + _HINT
    else:
        return str(error)


def _is_near(address: str) -> bool:
    """Return whether it may be on the local network, as any name may be."""
    try:
        return ip_address(address.partition("%")[0]).is_private
    except ValueError:
        return True
