"""Every bound and deadline of the server, except the drain's, which its caller gives."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import dataclass, replace

RESERVED_DESCRIPTORS = 64
"""Reserved for everything but clients: listeners, the engine's link and pipes (also during a restart),
scrapers, logs, exporters. An idle server with an engine has 16 open."""
_DARWIN_OPEN_MAX = 10240
"""macOS refuses soft limits above it, even if the hard limit is reported as infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The server's limits, each more than 0."""

    header_seconds: float = 10.0
    """Time from a request's first byte (on a new connection: from its accept) to the end of its headers, or
    408: a client must not hold a connection by sending a header line now and then."""

    body_seconds: float = 30.0
    """Time that the application waits for a body that arrives more slowly than the rate below; then 408."""

    body_bytes_per_second: int = 16 * 1024
    """Each time this many bytes of body arrive, one second of that wait is given back: a long prompt over a
    slow line passes, one byte every half second does not, nor a body that stops after megabytes."""

    crowded_body_seconds: float = 5.0
    """The time that replaces `body_seconds` while other bodies wait for room."""

    body_room_seconds: float = 7.0
    """Time that a body waits for room in the two bounds below; then 503. It is longer than a body that stalls
    may keep its room (`crowded_body_seconds`)."""

    held_body_bytes: int = 256 * 1024 * 1024
    """Bound on all bodies that are being read, or have been and are still held."""

    account_body_bytes: int = 128 * 1024 * 1024
    """The same bound for one account (`Service.account_of`), so that no account takes all of the other."""

    write_seconds: float = 20.0
    """The time to send one piece of a write; after it the client is disconnected."""

    write_piece_bytes: int = 64 * 1024
    """Progress of a long write is measured by pieces: without them a large answer on a slow line would be cut
    off."""

    keep_alive_seconds: float = 75.0
    """Idle time between requests; more than the 60 s of common proxies, so that they close first."""

    linger_seconds: float = 2.0
    """How long a refused client's bytes are read and dropped: closing with unread bytes resets the
    connection, and a reset can overtake the refusal."""

    header_bytes: int = 64 * 1024
    """Bound on request line and headers together; longer ones get 431."""

    body_bytes: int = 16 * 1024 * 1024
    """The longest request body; longer ones get 413, immediately if Content-Length shows it."""

    read_ahead_bytes: int = 64 * 1024
    """The read-ahead while the application runs: enough to notice a disconnect behind some pipelined
    requests. Beyond it nothing is read, and only the next write notices a disconnect."""

    connections: int = 1024
    """Open connections; further ones get 503. Each costs a file descriptor and at most some 100 KiB."""

    refusals: int = 512
    """Connections over the limit that are answered 503 at the same time; further ones wait in the listen
    backlog until one of these ends."""

    refusal_seconds: float = 1.0
    """How long such a connection may take to send its headers; then it gets the 503 without having asked."""

    least_refusal_seconds: float = 0.1
    """What is left of that time, and of `linger_seconds`, when all of `refusals` are taken: silent clients
    then keep no others in the backlog for long."""

    retry_after_seconds: int = 1
    """`Retry-After` of that 503: connections end within seconds."""


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the soft limit of open files to `wanted`, or as far as the hard limit allows. Return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    for target in (allowed, min(allowed, _DARWIN_OPEN_MAX)):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, target), hard))
            return max(soft, target)
    return soft


def wanted_descriptors(limits: Limits) -> int:
    return limits.connections + limits.refusals + RESERVED_DESCRIPTORS


def refusal_limits(limits: Limits, refusing: int) -> Limits:
    """Return the limits of a connection over the limit while `refusing` others are being refused: the more,
    the less time it has."""
    free = max(0.0, 1 - refusing / limits.refusals)
    head_seconds = max(limits.least_refusal_seconds, limits.refusal_seconds * free)
    linger_seconds = max(limits.least_refusal_seconds, limits.linger_seconds * free)
    return replace(
        limits,
        header_seconds=min(limits.header_seconds, head_seconds),
        linger_seconds=min(limits.linger_seconds, linger_seconds),
        body_seconds=min(limits.body_seconds, limits.linger_seconds),
        write_seconds=min(limits.write_seconds, limits.linger_seconds),
    )


def fit_descriptors(limits: Limits, descriptors: int) -> Limits:
    """Return `limits`, with no more connections than `descriptors` allow: first fewer refusals at a time,
    down to an eighth, then fewer connections."""
    if descriptors >= wanted_descriptors(limits):
        return limits
    room = descriptors - min(RESERVED_DESCRIPTORS, descriptors // 2)
    for_refusals = min(limits.refusals, max(1, room // 8))
    connections = max(1, min(limits.connections, room - for_refusals))
    return replace(limits, connections=connections, refusals=max(1, min(limits.refusals, room - connections)))
