"""Connect to a server from another machine, and identify this one. Without trio: engines use it."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

import msgspec

from scheduler.errors import LinkError
from scheduler.shared.framing import encode
from scheduler.shared.hello import Hello, HelloRefused, HelloReply, read_first_frame
from scheduler.shared.keep_alive import keep_alive
from scheduler.shared.local_network import connect_failure
from scheduler.shared.messages import PROTOCOL_VERSION

_ADDRESS_SECONDS = 3.0
"""Bound on one attempt at one address: a firewall may answer nothing."""
_PAUSE_SECONDS = 0.2
_reply_decoder = msgspec.msgpack.Decoder(HelloReply)


class DialFailed(Exception):
    """The server could not be reached: a sentence that names its addresses."""


def dial(
    addresses: Sequence[str], port: int, token: str, role: str, *, host: str, seconds: float
) -> socket.socket:
    """Return a blocking connection to the server, let in as `role`, on which keep-alive is set.

    Tries the addresses in turn, again and again for `seconds`. Raise DialFailed; HelloRefused with the
    server's reason.
    """
    ends_at = time.monotonic() + seconds
    hello = encode(Hello(PROTOCOL_VERSION, token, role, host))
    failures: dict[str, str] = {}
    while True:
        for address in addresses:
            left = max(0.1, ends_at - time.monotonic())
            try:
                return _dial(address, port, hello, min(left, _ADDRESS_SECONDS))
            except (OSError, LinkError) as error:
                failures[address] = connect_failure(error, address)
        if time.monotonic() + _PAUSE_SECONDS >= ends_at:
            tried = "; ".join(f"{address}: {reason}" for address, reason in failures.items())
            raise DialFailed(f"no connection from {host} to the server's port {port} ({tried})")
        time.sleep(_PAUSE_SECONDS)


def _dial(address: str, port: int, hello: bytes, seconds: float) -> socket.socket:
    """Make one attempt at one address. Raise OSError or LinkError, after which another attempt may succeed,
    or HelloRefused."""
    ends_at = time.monotonic() + seconds
    link = socket.create_connection((address, port), timeout=seconds)
    try:
        keep_alive(link.setsockopt)
        link.sendall(hello)
        reply = _reply_decoder.decode(read_first_frame(link, ends_at))
        if reply.refusal:
            raise HelloRefused(reply.refusal)
        link.settimeout(None)
    except msgspec.DecodeError as error:
        link.close()
        raise LinkError("what listens there is not this server") from error
    except BaseException:
        link.close()
        raise
    return link
