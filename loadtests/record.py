"""What a run leaves behind: one record a request, one a target's run. Plain data, written as JSON.

Every figure in a report is computed from these (`measure.py`); nothing else is measured anywhere.
Times are seconds on one monotonic clock of the generator, from the run's start.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

FORMAT_VERSION = 1


class Outcome(StrEnum):
    """How one request ended, as its client saw it."""

    OK = "ok"
    HUNG_UP = "hung_up"
    """The scenario wanted this client to leave before the end."""
    REFUSED = "refused"
    """429 or 503 before anything was streamed."""
    HTTP_ERROR = "http_error"
    STREAM_ERROR = "stream_error"
    """An error event in the middle of a stream."""
    CUT = "cut"
    """The stream ended without its end mark."""
    CONNECT_FAILED = "connect_failed"
    TIMED_OUT = "timed_out"
    """No byte for the run's request timeout."""
    UNFINISHED = "unfinished"
    """Still running when the run's time was over."""


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `stamps` are the arrivals of non-empty content, reasoning or tool deltas."""

    index: int
    """In order of sending."""
    population: str
    tenant: str
    session: str
    """Requests of one agent, and of its subagents, share it."""
    turn: int
    session_turns: int | None = None
    """How many turns its session was to have: a session that the run's end stopped between two turns is
    not complete, though each of its requests is."""
    scheduled_at: float
    sent_at: float
    stamps: tuple[float, ...] = ()
    ended_at: float
    outcome: Outcome
    status: int | None = None
    detail: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    """As the server counts; None where it did not say."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reusable_share: float = 0.0
    """The part of the prompt that earlier requests of this run had sent or been answered: what a cache
    without bounds could have served."""
    retry_after_seconds: float | None = None
    freed_after_seconds: float | None = None
    """For HUNG_UP, where the target's metrics report it: until its slot was free again."""
    correct: bool | None = None
    """Where the scenario knows the right answer."""


class GeneratorHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the load generator itself was the bottleneck; then the run is void."""

    cpu_share: float
    """Its processor seconds by the run's seconds, of one core."""
    lag_p50_seconds: float
    lag_p99_seconds: float
    """How late its own timer fired (every 50 ms), and how late requests of a schedule were sent."""
    void: str | None = None
    """Why the run must not be believed, if so."""


class ServerSample(msgspec.Struct, frozen=True, kw_only=True):
    """One scrape of the target's `/metrics`, its samples by name with labels as Prometheus writes them."""

    at: float
    samples: dict[str, float]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario against one target, once."""

    format_version: int = FORMAT_VERSION
    target: str
    url: str
    model: str
    scenario: str
    description: str
    settings: dict[str, str]
    """The scenario's sizes and options as used, for the reader."""
    salt: str
    """Makes this run's prompts fresh; equal salts are equal prompts."""
    seed: int
    started: str
    """Wall clock, ISO 8601."""
    warm_up_seconds: float
    """Requests sent before are not measured."""
    steady_until: float
    """Nor are those sent after: the tail, when arrivals have ended."""
    ended_at: float
    interrupted: bool
    ttft_slo_seconds: float
    tpot_slo_seconds: float
    unmeasured: tuple[str, ...] = ()
    """Populations (a flood, say) whose own figures are not the question."""
    requests: tuple[RequestRecord, ...]
    generator: GeneratorHealth
    server: tuple[ServerSample, ...] = ()
    round: int = 0
    """In a comparison: which pair of runs this belongs to."""


def save(path: Path, runs: list[RunRecord]) -> None:
    """All runs of one command, as one JSON document."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(runs), indent=1))


def load(path: Path) -> list[RunRecord]:
    """Raises ValueError naming the file where it is not such a document."""
    try:
        runs = msgspec.json.decode(path.read_bytes(), type=list[RunRecord])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is not a load test's record: {error}") from error
    if any(run.format_version != FORMAT_VERSION for run in runs):
        raise ValueError(f"{path} has another format version than {FORMAT_VERSION}")
    return runs
