"""Every metric of one engine: its name, help, labels and buckets."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.telemetry import labels as label_values
from scheduler.telemetry.instruments import ENGINE, Instruments

STEP_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0),
)
STEP_ROWS = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
STEP_TOKENS = (0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""A step without decoding rows, or without prefill, is a bucket of its own."""


class EngineMetrics:
    """The series of one engine, labelled with its model's name and its own. A restart of its process resets
    no counter."""

    def __init__(self, declare: Instruments) -> None:
        self.engine = declare.fixed[ENGINE]
        self._declare_life(declare)
        self._declare_requests(declare)
        self._declare_steps(declare)
        self._declare_memory(declare)
        self._declare_prefixes(declare)

    def _declare_life(self, declare: Instruments) -> None:
        self._model = declare.open_gauge(
            "penstock_model_info",
            "1 once the engine was ready; the model, its device and its fallbacks are in the labels.",
            *label_values.MODEL_FACTS,
        )
        self.up = declare.gauge("penstock_engine_up", "1 while the engine can take requests.")
        self.deaths = declare.counter("penstock_engine_deaths", "Engine processes that ended.")
        self.restarts = declare.counters(
            "penstock_engine_restarts",
            "Engine deaths by cause, from stderr and the exit status.",
            cause=label_values.RESTART_CAUSES,
        )
        self.stalled_seconds = declare.gauge(
            "penstock_stalled_seconds", "Time since the last step while the engine has work; else 0."
        )
        self.last_step_age = declare.gauge(
            "penstock_last_step_age_seconds", "Time since the last step, idle or busy; 0 before the first."
        )

    def _declare_requests(self, declare: Instruments) -> None:
        self.on_board = declare.gauge("penstock_engine_requests", "Requests that the engine holds.")
        self.by_state = declare.gauges(
            "penstock_engine_state_requests",
            "Requests that the engine holds, by state.",
            state=label_values.STATES,
        )
        self.slots = declare.gauge("penstock_slots", "Number of slots.")
        self.running = declare.gauge("penstock_running_slots", "Slots in use, prefilling or decoding.")
        self.waiting = declare.gauge(
            "penstock_engine_waiting_requests", "Requests that the engine holds without a slot."
        )
        self.row_tokens = declare.gauge(
            "penstock_row_tokens", "Tokens of running rows, shared ones counted once per row."
        )
        self.shared_row_tokens = declare.gauge(
            "penstock_shared_row_tokens",
            "Tokens of running rows that are read from the prefix cache without a copy.",
        )
        self.preempted = declare.gauge(
            "penstock_preempted_requests", "Preempted requests that wait to continue."
        )
        self.preemptions = declare.counter("penstock_preemptions", "Preemptions because KV memory ran out.")

    def _declare_steps(self, declare: Instruments) -> None:
        self.prefilled_tokens = declare.counter("penstock_prefilled_tokens", "Prompt tokens computed.")
        self.re_prefilled_tokens = declare.counter(
            "penstock_re_prefilled_tokens", "Prompt tokens computed again after a preemption."
        )
        self.generated_tokens = declare.counter("penstock_generated_tokens", "Tokens generated.")
        self.step_seconds = declare.histograms(
            "penstock_engine_step_seconds",
            "Duration of steps by kind: decode, mixed or prefill.",
            STEP_SECONDS,
            kind=label_values.STEPS,
        )
        self.draft_tokens = declare.counters(
            "penstock_draft_tokens",
            "Tokens that steps verified beyond one a row, by where they were drafted from.",
            source=label_values.DRAFT_SOURCES,
        )
        self.accepted_draft_tokens = declare.counters(
            "penstock_accepted_draft_tokens",
            "Those of them that are in the answers.",
            source=label_values.DRAFT_SOURCES,
        )
        self.draft_steps = declare.counter("penstock_draft_steps", "Steps that verified drafted tokens.")
        self.draft_seconds = declare.counters(
            "penstock_draft_seconds",
            "Time that those steps saved against steps of one token a row, or lost where they took longer.",
            outcome=label_values.DRAFT_SECONDS,
        )
        self.step_rows = declare.histogram(
            "penstock_engine_step_decode_rows", "Rows that got a token in a step.", STEP_ROWS
        )
        self.step_prefill = declare.histogram(
            "penstock_engine_step_prefill_tokens", "Prompt tokens computed in a step.", STEP_TOKENS
        )
        self.seconds = declare.counters(
            "penstock_engine_seconds",
            "Seconds with work on board: in the model, in bookkeeping, between steps.",
            part=label_values.ENGINE_PARTS,
        )
        self.chunk_ceiling = declare.gauge(
            "penstock_prefill_chunk_ceiling_tokens", "Most prompt tokens a step; halved by a device timeout."
        )

    def _declare_memory(self, declare: Instruments) -> None:
        self.weights_bytes = declare.gauge("penstock_weights_bytes", "Bytes of the model's weights.")
        self.kv_bytes = declare.gauge("penstock_kv_bytes", "Bytes of KV cache that running rows hold.")
        self.kv_budget = declare.gauge(
            "penstock_kv_budget_bytes",
            "Bytes that running rows and the prefix cache may hold together; 0 until the engine reports it.",
        )
        self.kv_cache_share = declare.gauge(
            "penstock_kv_cache_share",
            "Share of the KV budget in use; lowered when an engine runs out of memory.",
        )
        self.kv_cache_share.set(1)
        self.device_active = declare.gauge(
            "penstock_device_active_bytes", "Bytes of live arrays in MLX's allocator."
        )
        self.device_cached = declare.gauge(
            "penstock_device_cached_bytes", "Freed bytes that MLX keeps for new arrays."
        )
        self.device_peak = declare.gauge(
            "penstock_device_peak_bytes", "Peak of active bytes since the engine started."
        )
        self.device_recommended = declare.gauge(
            "penstock_device_recommended_bytes",
            "Working set that the device recommends; 0 if it has no figure (a CPU).",
        )
        self.memory_relief = declare.gauge(
            "penstock_memory_relief",
            "What the engine gives up for lack of memory, and what came before: 1 cached prefixes, 2 large"
            " chunks, 3 admission, 4 running rows.",
        )
        self.memory_relief_changes = declare.counters(
            "penstock_memory_relief_changes", "Changes of that level.", direction=label_values.DIRECTIONS
        )
        self.memory_guard = declare.gauges(
            "penstock_memory_guard_bytes",
            "The memory guard's last reading: used by the engine, its limit, what the system can still give,"
            " and the expected peak of a prefill chunk; -1: unknown.",
            part=label_values.MEMORY_PARTS,
        )

    def _declare_prefixes(self, declare: Instruments) -> None:
        self.prefix_query_tokens = declare.counter(
            "penstock_prefix_query_tokens", "Prompt tokens looked up in the prefix cache."
        )
        self.prefix_hit_tokens = declare.counter(
            "penstock_prefix_hit_tokens", "Prompt tokens found in the prefix cache, so not computed."
        )
        self.prefix_stored_tokens = declare.counter(
            "penstock_prefix_stored_tokens", "Tokens inserted into the prefix cache."
        )
        self.prefix_evicted_tokens = declare.counters(
            "penstock_prefix_evicted_tokens",
            "Evicted tokens: for lack of room, superseded by a session's newer turn, or cleared.",
            reason=label_values.EVICTIONS,
        )
        self.prefix_complaints = declare.counter(
            "penstock_prefix_integrity_complaints", "Faults found by the prefix cache's integrity check."
        )
        self.prefix_tokens = declare.gauge("penstock_prefix_tokens", "Tokens that the prefix cache holds.")
        self.prefix_bytes = declare.gauge("penstock_prefix_bytes", "Bytes that the prefix cache holds.")
        self.disk_hit_tokens = declare.counter(
            "penstock_prefix_disk_hit_tokens", "Prompt tokens read from disk, so not computed."
        )
        self.disk_reads = declare.counter("penstock_prefix_disk_reads", "Files read by the disk tier.")
        self.disk_writes = declare.counter("penstock_prefix_disk_writes", "Files written by the disk tier.")
        self.disk_dropped_writes = declare.counter(
            "penstock_prefix_disk_dropped_writes",
            "Writes that the disk tier dropped because it was behind or full.",
        )
        self.disk_errors = declare.counter(
            "penstock_prefix_disk_errors", "Files that were damaged, foreign or missing, and failed writes."
        )
        self.disk_bytes = declare.gauge("penstock_prefix_disk_bytes", "Bytes that the disk tier holds.")

    def describe_model(self, labels: Mapping[str, str]) -> None:
        """Set the labels, one for each of MODEL_FACTS, anew: a restarted engine may run on another device."""
        self._model.clear()
        self._model.labels(*(labels[fact] for fact in label_values.MODEL_FACTS)).set(1)
