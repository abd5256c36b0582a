"""What each stage is told at start: frozen, complete, read once.

Values arrive here checked (`api/settings.py` refuses nonsense by the option's name), so nothing below
checks again and nothing below reads an environment variable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scheduler.link.messages import PROTOCOL_VERSION, Load, ScriptedPlan


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine process loads and how it runs."""

    backend: Literal["mlx", "scripted"]
    model_folder: Path
    max_slots: int = 32
    prefill_chunk_tokens: int = 512
    prefill_rows: int = 8
    weights_dtype: Literal["auto", "stored", "float32", "bfloat16", "float16"] = "auto"
    kv_cache_bytes: int = -1
    """For kept prefixes and running rows; 0 keeps no prefixes, -1 takes what the device allows."""
    itl_target_ms: float = 0.0
    kv_disk: Path | None = None
    kv_disk_bytes: int = 32 << 30
    scripted: ScriptedPlan = field(default_factory=ScriptedPlan)

    def load_message(self, kv_cache_share: float = 1.0) -> Load:
        return Load(
            version=PROTOCOL_VERSION,
            backend=self.backend,
            model_folder=str(self.model_folder),
            max_slots=self.max_slots,
            prefill_chunk_tokens=self.prefill_chunk_tokens,
            prefill_rows=self.prefill_rows,
            weights_dtype=self.weights_dtype,
            scripted=self.scripted,
            kv_cache_bytes=self.kv_cache_bytes,
            kv_disk="" if self.kv_disk is None else str(self.kv_disk),
            kv_disk_bytes=self.kv_disk_bytes,
            itl_target_ms=self.itl_target_ms,
            kv_cache_share=kv_cache_share,
        )


@dataclass(frozen=True, slots=True)
class SupervisionConfig:
    """Deadlines of the engine process's life."""

    ready_seconds: float = 600.0
    """From start to READY; a large model on a cold disk takes minutes."""
    backoff_first_seconds: float = 0.1
    backoff_limit_seconds: float = 10.0
    stop_seconds: float = 5.0
    """From the closing of the link to SIGKILL."""
    stable_seconds: float = 30.0
    """A life at least this long resets the backoff."""


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """When an engine's death is more than a pause. The rules are in `recovery.py`."""

    max_request_deaths: int = 2
    """A request that was on board at so many in a row, the last time as the only suspect, is failed."""
    max_engine_deaths: int = 8
    death_window_seconds: float = 60.0
    """So many deaths in so long a time, and nothing is admitted before an engine has settled."""
    max_failed_starts: int = 5
    """After so many engines in a row that did not start, answers half given are given up."""


@dataclass(frozen=True, slots=True)
class FairnessConfig:
    """Who goes first. The reasons are in `intake/fair_queue.py`, `service_ledger.py` and `flow.py`."""

    half_life_seconds: float = 60.0
    output_weight: float = 2.0
    """What an output token costs in uncached prompt tokens: VTC's and llm-d's figure."""
    aging_seconds: float = 30.0
    """A band moves up by one for every so many seconds that its oldest request has waited."""
    patience_seconds: float = 600.0
    """A flow that has waited so long goes first whatever service it has had. Ten half-lives: any lead in
    service has then decayed to a thousandth, so that this bounds starvation and changes no shares."""
    window: int = 32
    """How many later requests of its own session may overtake a request, and one."""


@dataclass(frozen=True, slots=True)
class IntakeConfig:
    """How much may wait, for how long, and in which order. None is no bound."""

    max_queue: int = 1024
    max_queued_tokens: int | None = None
    max_queue_per_tenant: int | None = None
    queue_seconds: float | None = None
    max_running_seconds: float | None = None
    fairness: FairnessConfig = field(default_factory=FairnessConfig)
    lookahead: int = 4
    """Requests beyond the free slots that are already with the engine, so that a slot which falls
    free between two steps is taken by the next step, without a round trip to this process."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Everything the scheduler is told."""

    engine: EngineConfig
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)
    intake: IntakeConfig = field(default_factory=IntakeConfig)
    cache_sharing: Literal["all", "tenant"] = "all"
    """Whose requests may find each other's prefixes."""
    stall_seconds: float = 120.0
    """With work on board and no step for this long, the engine is killed and replaced; sooner, where it has
    shown how long its steps take (`step_deadlines.py`)."""
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
