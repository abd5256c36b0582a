"""The part of `/live`'s events that `penstock top` shows.

Unknown fields are skipped, and those that a server leaves out have a default, so that client and server may
be of different versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from api.cli.event_lines import EndlessLine, EventLines

_Name = str | None
Column = Sequence[float | None]


class Engines(Struct, frozen=True):
    """All engines of the model together."""

    condition: str = "unknown"
    restarts: int = 0
    last_death: str | None = None
    stalled_seconds: float = 0.0
    draining: bool = False


class EngineSnapshot(Struct, frozen=True):
    engine: str = ""
    condition: str = "unknown"
    draining: bool = False
    restarts: int = 0
    stalled_seconds: float = 0.0
    slots: float = 0.0
    running_slots: float = 0.0
    waiting_requests: float = 0.0
    running_bytes: float = 0.0
    prefix_bytes: float = 0.0
    budget_bytes: float = 0.0


class Tenant(Struct, frozen=True):
    tenant: str = ""
    requests: int = 0
    sessions: int = 0
    oldest_seconds: float = 0.0
    service_tokens: float = 0.0


class Queue(Struct, frozen=True):
    requests: int = 0
    prompt_tokens: int = 0
    oldest_seconds: float = 0.0
    tenants: list[Tenant] = []


class Request(Struct, frozen=True):
    """One request in an engine."""

    id: str = ""
    engine: _Name = None
    tenant: str = ""
    session: str = ""
    state: str = ""
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    max_tokens: int = 0
    age_seconds: float = 0.0


class MemorySnapshot(Struct, frozen=True):
    running_bytes: float = 0.0
    prefix_bytes: float = 0.0
    budget_bytes: float = 0.0
    weights_bytes: float = 0.0


class ModelSnapshot(Struct, frozen=True):
    model: str = ""
    condition: str = ""
    queued: int = 0
    in_engine: int = 0
    held_bytes: float = 0.0


class History(Struct, frozen=True):
    """The seconds since the snapshot before, the oldest first: tokens a second, and percentiles in seconds,
    None where nothing was observed."""

    generated: Column = ()
    prefilled: Column = ()
    cached: Column = ()
    ttft_p50: Column = ()
    ttft_p95: Column = ()
    itl_p50: Column = ()
    itl_p95: Column = ()


class ServerSnapshot(Struct, frozen=True):
    """`time` is the server's clock, in seconds; tokens are totals since it started."""

    time: float
    generated_tokens: float
    model: str = ""
    slots: float = 0.0
    engine: Engines = Engines()
    engines: list[EngineSnapshot] = []
    queue: Queue = Queue()
    running: list[Request] = []
    memory: MemorySnapshot = MemorySnapshot()
    models: list[ModelSnapshot] = []
    history: History = History()
    draft_tokens: float = 0.0
    accepted_draft_tokens: float = 0.0


class CacheSnapshot(Struct, frozen=True):
    """The contents of the prefix caches."""

    enabled: bool = False
    nodes: int = 0
    tokens: int = 0
    budget_bytes: float = 0.0


class NotALiveStream(Exception):
    """The stream's events are not those of Penstock's `/live`."""


class LiveEvents:
    """Reads snapshots and cache reports from pieces of the stream's body, and skips other events. Raises
    NotALiveStream."""

    def __init__(self) -> None:
        self._lines = EventLines()
        self._event: dict[bytes, bytes] = {}

    def feed(self, data: bytes) -> list[ServerSnapshot | CacheSnapshot]:
        return [found for name, body in self.feed_raw(data) if (found := _decoded(name, body)) is not None]

    def feed_raw(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield each event's name and JSON."""
        try:
            for field, value in self._lines.feed(data):
                if field:
                    self._event[field] = self._event.get(field, b"") + value
                else:
                    event, self._event = self._event, {}
                    yield event.get(b"event", b"").decode("utf-8", "replace"), event.get(b"data", b"")
        except EndlessLine as error:
            raise NotALiveStream("a line without end") from error


_snapshot = msgspec.json.Decoder(ServerSnapshot, strict=False)
_cache = msgspec.json.Decoder(CacheSnapshot, strict=False)


def _decoded(name: str, body: bytes) -> ServerSnapshot | CacheSnapshot | None:
    try:
        match name:
            case "snapshot":
                return _snapshot.decode(body)
            case "cache":
                return _cache.decode(body)
            case _:
                return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotALiveStream(str(error)) from error
