"""The configuration of each stage: frozen, complete, read once at start.

`options/settings.py` has checked the values; the scheduler neither checks them again nor reads environment
variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from scheduler.engine_bounds import EngineBounds
from scheduler.shared.messages import AdapterSource, Load, MemoryPart
from scheduler.shared.messages import EngineConfig as EngineConfig


def load_message(
    config: EngineConfig,
    bounds: EngineBounds | None = None,
    number: int = 0,
    given: MemoryPart | None = None,
    adapters: tuple[AdapterSource, ...] | None = None,
) -> Load:
    """Return the message with which an engine starts. `bounds`: those after deaths, or None for a first
    engine. `number`: the engine's number in the pool; each engine has a disk tier of its own. `given`: the
    engine's part of one memory budget, or None if one model has all of it. `adapters`: the current ones, or
    None for those configured."""
    bounds = bounds or EngineBounds(config.prefill_chunk_tokens)
    own: dict[str, Any] = {}
    if config.kv_disk and number:
        own["kv_disk"] = str(Path(config.kv_disk) / f"engine-{number}")
    if adapters is not None:
        own["adapters"] = adapters
    if given is not None:
        own |= {"memory_part": given, "sharers": given.sharers}
    return Load(
        **{**msgspec.structs.asdict(config), **own},
        kv_cache_share=bounds.kv_cache_share,
        chunk_ceiling=bounds.chunk_tokens,
        climb_chunks=bounds.climb_chunks,
    )


@dataclass(frozen=True, slots=True)
class ThinkingConfig:
    """Thinking budgets of requests that name no number of tokens. None sets no budget."""

    default_tokens: int | None = None
    effort_tokens: Mapping[str, int | None] = field(default_factory=dict)
    """Tokens by effort; "none" is reasoning that the client turned off."""


@dataclass(frozen=True, slots=True)
class SupervisionConfig:
    """Deadlines for the engine process."""

    ready_seconds: float = 600.0
    """Time from start to READY: a large model on a cold disk takes minutes."""
    backoff_first_seconds: float = 0.1
    backoff_limit_seconds: float = 10.0
    stop_seconds: float = 5.0
    """Time from closing the link to SIGKILL."""
    stable_seconds: float = 30.0
    """An engine that was ready for this long counts as stable, which resets the backoff."""


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """Bounds beyond which an engine crash fails requests or stops admission. The rules are in `engines/`."""

    max_request_deaths: int = 2
    """A request that was a suspect at this many deaths in a row, the last time the only one, fails."""
    max_engine_deaths: int = 8
    death_window_seconds: float = 60.0
    """After `max_engine_deaths` within this window nothing is admitted until an engine is stable."""
    max_failed_starts: int = 5
    """After this many failed starts in a row, requests that await an engine fail."""


@dataclass(frozen=True, slots=True)
class FairnessConfig:
    """Scheduling order. The rules are in `intake/fair_queue.py`, `service_ledger.py` and `flow.py`."""

    half_life_seconds: float = 60.0
    output_weight: float = 2.0
    """Cost of an output token in uncached prompt tokens, as in VTC and llm-d."""
    aging_seconds: float = 30.0
    """A band moves up by one each time its oldest request has waited this long."""
    patience_seconds: float = 600.0
    """A flow that has waited this long goes first, whatever its service. Ten half-lives: any lead in service
    has then decayed to a thousandth, so this bounds starvation and changes no shares."""
    window: int = 32
    """One more than the number of later requests of its own session that may overtake a request."""


@dataclass(frozen=True, slots=True)
class IntakeConfig:
    """How many requests may wait, for how long, and in which order. None sets no bound."""

    max_queue: int = 1024
    max_queued_tokens: int | None = None
    max_queue_per_tenant: int | None = None
    queue_seconds: float | None = None
    max_running_seconds: float | None = None
    fairness: FairnessConfig = field(default_factory=FairnessConfig)
    lookahead: int = 4
    """Requests that an engine holds beyond its slots, so that the next step fills a freed slot without a
    round trip to the server."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The whole configuration of the scheduler."""

    engine: EngineConfig
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    intake: IntakeConfig = field(default_factory=IntakeConfig)
    cache_sharing: Literal["all", "tenant"] = "all"
    """Prefix cache isolation: shared, or per tenant."""
    stall_seconds: float = 120.0
    """If the engine has work and finishes no step for this long, it is declared hung and replaced; sooner if
    its step durations are known (`engines/deadlines.py`)."""
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    engines: int = 1
    """How many engines to start."""
    engines_join: bool = False
    """Whether they join from other machines: there may be none."""
    load_at_start: bool = True
    """Whether they start at once, or when the model is loaded."""
    must_start: bool = True
    """Whether engines that can never be started end the service; else they end their own model's."""
