"""Every bound and deadline of the server. The drain's deadline is the caller's, given when it starts."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import dataclass, fields, replace

RESERVED_DESCRIPTORS = 64
"""For what is no client's: listeners, the engine's link and pipes (also while the next one starts), scrapers,
logs, exporters. An idle server with an engine has 12 open."""
_DARWIN_OPEN_MAX = 10240
"""macOS refuses soft limits above it also where the hard one is said to be infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Raises ValueError for a limit that would stop everything."""

    header_seconds: float = 10.0
    """From a request's first byte (a new connection: from its accept) to the end of its headers, or 408: a
    client that sends a header line now and then must not hold a connection."""

    body_seconds: float = 30.0
    """How long the application may wait for the body in all, before the rate below is counted, or 408."""

    body_bytes_per_second: int = 16 * 1024
    """Each time this many bytes of body arrive, the deadline moves by one second: a long prompt over a
    slow line gets through, one byte per half second does not."""

    write_seconds: float = 20.0
    """For one piece of a write to leave; then the client counts as one that does not read and is cut."""

    write_piece_bytes: int = 64 * 1024
    """What counts as progress of a long write: without pieces a large answer on a slow line would be cut."""

    keep_alive_seconds: float = 75.0
    """Idle between requests; more than the 60 s of common proxies, so that they close first."""

    linger_seconds: float = 2.0
    """How long a refused client's bytes are read and dropped: to close on unread bytes resets the connection,
    and a reset can overtake the refusal."""

    header_bytes: int = 64 * 1024
    """Request line and headers, or 431."""

    body_bytes: int = 16 * 1024 * 1024
    """The longest request body; longer ones get 413, immediately where Content-Length shows it."""

    read_ahead_bytes: int = 64 * 1024
    """Read while the application runs, ahead of what it took: enough to see a client go after some pipelined
    requests. Beyond it nothing is read, so a departure behind it is noticed only by the next write."""

    connections: int = 1024
    """Open at once; the next ones get 503. Each costs a file descriptor and some 100 KiB at worst."""

    refusals: int = 64
    """Connections over the limit that are answered 503 at the same time; further ones are just closed."""

    retry_after_seconds: int = 1
    """`Retry-After` of that 503: connections come and go within seconds."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} must be more than 0, not {getattr(self, field.name)!r}")


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the soft limit of open files to `wanted`, or as far as the hard one allows. Returns it."""
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


def fit_descriptors(limits: Limits, descriptors: int) -> Limits:
    """`limits`, with as many connections as `descriptors` suffice for."""
    if descriptors >= wanted_descriptors(limits):
        return limits
    room = descriptors - min(RESERVED_DESCRIPTORS, descriptors // 2)
    refusals = max(1, min(limits.refusals, room // 8))
    return replace(limits, connections=max(1, room - refusals), refusals=refusals)
