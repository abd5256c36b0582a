"""The records of a run: one a request, one a target's run. Plain data, written as JSON.

Every figure of a report is computed from them (`figures.py`); nothing else is measured anywhere. Times are
seconds on one monotonic clock of the generator, from the run's start.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

LAG_LIMIT_SECONDS = 0.1
"""The limit on the generator's lag at the 99th percentile: above it, timestamps are late by more than a
token's time."""
CPU_LIMIT = 0.9
"""The limit on processor use, as a share of the one core that a trio program can use."""


class Outcome(StrEnum):
    """How one request ended, as its client saw it."""

    OK = "ok"
    REFUSED = "refused"
    """429 or 503 before the stream began."""
    HTTP_ERROR = "http_error"
    STREAM_ERROR = "stream_error"
    """An error event within a stream."""
    CUT = "cut"
    """The stream ended without its end mark."""
    CONNECT_FAILED = "connect_failed"
    TIMED_OUT = "timed_out"
    """No byte arrived within the run's request timeout."""
    UNFINISHED = "unfinished"
    """Still running at the end of the run."""


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `stamps` are the arrivals of non-empty content, reasoning or tool deltas."""

    index: int
    """Number in the order of sending."""
    population: str
    tenant: str
    session: str
    """Requests of one agent and of its subagents share it."""
    turn: int
    session_turns: int | None = None
    """How many turns its session was to have: if the run's end stops a session between two turns, each of its
    requests is complete and the session is not."""
    scheduled_at: float
    sent_at: float
    stamps: tuple[float, ...] = ()
    ended_at: float
    outcome: Outcome
    status: int | None = None
    detail: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    """The server's count; None if it reported none."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reusable_share: float = 0.0
    """The share of the prompt that earlier requests of this run had sent or received: what an unbounded cache
    could have hit."""


class GeneratorHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the load generator was the bottleneck, which makes the run void."""

    cpu_share: float
    """Its processor seconds per second of the run, of one core."""
    lag_p99_seconds: float
    """How late its own timer fired (every 50 ms), and how late scheduled requests were sent."""

    @property
    def void(self) -> str | None:
        """Return each bound that the generator passed, with its value and the bound; None if it kept up."""
        passed = []
        if self.cpu_share > CPU_LIMIT:
            passed.append(f"used {self.cpu_share:.0%} of its core (bound {CPU_LIMIT:.0%})")
        if self.lag_p99_seconds > LAG_LIMIT_SECONDS:
            passed.append(f"was late by {self.lag_p99_seconds:.3f} s at p99 (bound {LAG_LIMIT_SECONDS:g} s)")
        return f"the load generator {' and '.join(passed)}" if passed else None


class ServerSample(msgspec.Struct, frozen=True, kw_only=True):
    """One scrape of the target's `/metrics`: samples by name with labels as Prometheus writes them."""

    at: float
    samples: dict[str, float]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a scenario against one target."""

    target: str
    url: str
    model: str
    scenario: str
    description: str
    settings: dict[str, str]
    """The scenario's sizes and options as used, for the reader."""
    salt: str
    """Makes this run's prompts fresh; equal salts give equal prompts."""
    started: str
    """Wall clock, ISO 8601."""
    warm_up_seconds: float
    """Requests sent before this are not measured."""
    steady_until: float
    """Requests sent after this are not measured: the tail, when arrivals have ended."""
    ended_at: float
    interrupted: bool
    ttft_slo_seconds: float
    tpot_slo_seconds: float
    unmeasured: tuple[str, ...] = ()
    """Populations (a flood, say) whose own figures are not measured."""
    requests: tuple[RequestRecord, ...]
    generator: GeneratorHealth
    server: tuple[ServerSample, ...] = ()
    """Before the first request and after the last."""
    round: int = 0
    """The round in a comparison, whose runs are compared with each other."""


def save(path: Path, runs: list[RunRecord]) -> None:
    """Write all runs of one command as one JSON document."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(runs), indent=1))


def load(path: Path) -> list[RunRecord]:
    """Return the runs in a file. Raise ValueError, which names the file, if it is not such a document."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[RunRecord])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is not the record of a load test: {error}") from error
