"""Every metric's name, help, labels and buckets. One registry per service, in the parent process only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from scheduler.telemetry import labels as label_values
from scheduler.telemetry.instruments import ENGINE, EngineInstruments, Instruments

# vLLM's edges (vllm/v1/metrics/buckets.py, 0.33.0), so that dashboards compare like with like.
TTFT_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)

TOKEN_COUNTS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000),
    *(10_000, 20_000, 50_000, 100_000, 200_000, 500_000),
)
STEP_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0),
)
STEP_ROWS = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
STEP_TOKENS = (0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""A step without decoding rows, or without prefill, is a bucket of its own."""
CANCEL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

LONG_GAP_SECONDS = 0.5
"""Only gaps at least this long get an exemplar: one for every token would cost too much."""


class EngineMetrics:
    """The series of one engine, labelled with its name. A restart of its process resets no counter."""

    def __init__(self, declare: EngineInstruments) -> None:
        self.engine = declare.engine
        self._declare_life(declare)
        self._declare_requests(declare)
        self._declare_steps(declare)
        self._declare_memory(declare)
        self._declare_prefixes(declare)

    def _declare_life(self, declare: EngineInstruments) -> None:
        self._model = declare.family(
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

    def _declare_requests(self, declare: EngineInstruments) -> None:
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

    def _declare_steps(self, declare: EngineInstruments) -> None:
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

    def _declare_memory(self, declare: EngineInstruments) -> None:
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

    def _declare_prefixes(self, declare: EngineInstruments) -> None:
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
        """The served model; a restarted engine may run on another device."""
        self._model.remove_by_labels({ENGINE: self.engine})
        self._model.labels(engine=self.engine, **labels).set(1)


class Metrics:
    """The instruments of the whole service, and those of each engine."""

    def __init__(self, tenants: Collection[str] = ()) -> None:
        """`tenants` have their own label; all others are "other"."""
        self.registry = CollectorRegistry()
        self.tenants = tuple(sorted(set(tenants)))
        self._engines: dict[str, EngineMetrics] = {}
        self._of_engines: dict[str, Counter | Gauge | Histogram] = {}
        declare = Instruments(self.registry)
        self._declare_requests(declare)
        self._declare_http(declare)
        self._declare_queue(declare)
        self._declare_pool(declare)
        self._declare_latencies(declare)

    @property
    def engines(self) -> Sequence[EngineMetrics]:
        """Those of every engine that has not left, the first one first."""
        return tuple(self._engines.values())

    def of_engine(self, engine: str) -> EngineMetrics:
        """Return an engine's series; they are made when its name is new."""
        if engine not in self._engines:
            declare = EngineInstruments(self.registry, self._of_engines, engine)
            self._engines[engine] = EngineMetrics(declare)
        return self._engines[engine]

    def forget_engine(self, engine: str) -> None:
        """Remove the series of an engine that has left for good. Samples that come later are lost."""
        self._engines.pop(engine, None)
        for family in self._of_engines.values():
            family.remove_by_labels({ENGINE: engine})

    def _declare_requests(self, declare: Instruments) -> None:
        self.requests = declare.counter(
            "penstock_requests", "Requests by their one terminal outcome.", outcome=label_values.OUTCOMES
        )
        self.rejections = declare.counter(
            "penstock_rejections",
            'Requests refused before they were queued, by reason; each is also an outcome "rejected".',
            reason=label_values.REJECTIONS,
        )
        self.malformed_calls = declare.counter(
            "penstock_malformed_tool_calls", "Tool calls that cannot be parsed, by their syntax.", dialect=()
        )
        self.prompt_tokens = declare.counter("penstock_prompt_tokens", "Prompt tokens of accepted requests.")
        self.late_tokens = declare.counter(
            "penstock_late_tokens", "Tokens dropped because they arrived after the request's cancel was sent."
        )
        self.build = declare.gauge(
            "penstock_build_info",
            "Always 1; the versions are in the labels.",
            **dict.fromkeys(("version", "python", "mlx"), ()),
        )
        self.telemetry_failures = declare.counter(
            "penstock_telemetry_failures",
            "Exceptions in telemetry: each lost a sample, a log line or a span.",
            part=label_values.TELEMETRY_PARTS,
        )

    def _declare_http(self, declare: Instruments) -> None:
        self.http_requests = declare.counter(
            "penstock_http_requests",
            "HTTP responses started, by route template and status; 499: the client left before.",
            **dict.fromkeys(("method", "route", "status"), ()),
        )
        self.bodies_with_ignored_fields = declare.counter(
            "penstock_bodies_with_ignored_fields", "Bodies with fields that no schema knows.", route=()
        )
        self.http_connections = declare.gauge("penstock_http_connections", "Open connections of clients.")
        self.http_refusals = declare.counter(
            "penstock_http_refusals",
            "Requests and connections that the HTTP server refused, by reason.",
            reason=label_values.HTTP_REFUSALS,
        )
        self.accept_failures = declare.counter(
            "penstock_http_accept_failures", "Failed accept calls, mostly for lack of file descriptors."
        )

    def _declare_queue(self, declare: Instruments) -> None:
        self.queued = declare.gauge("penstock_queued_requests", "Accepted requests waiting for an engine.")
        self.queued_tokens = declare.gauge(
            "penstock_queued_prompt_tokens", "Prompt tokens of those requests."
        )
        self.oldest_queued = declare.gauge(
            "penstock_oldest_queued_seconds", "Wait of the oldest of those requests."
        )
        bands, tenants = label_values.BANDS, (*self.tenants, label_values.OTHER)
        self.band_queued = declare.gauge(
            "penstock_band_queued_requests", "Waiting requests by the sign of their priority.", band=bands
        )
        self.band_tokens = declare.gauge(
            "penstock_band_queued_prompt_tokens", "Prompt tokens of those requests.", band=bands
        )
        self.band_oldest = declare.gauge(
            "penstock_band_oldest_queued_seconds", "Wait of the oldest of those requests.", band=bands
        )
        self.service_gap = declare.gauge(
            "penstock_service_gap_tokens",
            "Largest difference of attained service between two waiting tenants of one priority.",
        )
        self.tenant_prefill = declare.counter(
            "penstock_tenant_prefill_tokens",
            "Prompt tokens computed for a tenant's requests.",
            tenant=tenants,
        )
        self.tenant_output = declare.counter(
            "penstock_tenant_output_tokens", "Tokens generated for a tenant's requests.", tenant=tenants
        )
        self.tenant_queued = declare.gauge(
            "penstock_tenant_queued_requests", "Waiting requests of a tenant.", tenant=tenants
        )
        self.tenant_oldest = declare.gauge(
            "penstock_tenant_oldest_queued_seconds", "Wait of the oldest of those requests.", tenant=tenants
        )

    def _declare_pool(self, declare: Instruments) -> None:
        self.by_condition = declare.gauge(
            "penstock_engines", "Engines by condition.", condition=label_values.CONDITIONS
        )
        self.session_moves = declare.counter(
            "penstock_session_moves", "Requests sent to another engine than their session's last one."
        )
        self.awaiting_engine = declare.gauge(
            "penstock_awaiting_engine_requests", "Requests whose engine died, until another one resumes them."
        )
        self.resumed = declare.counter(
            "penstock_resumed_requests", "Times that a request was resumed on another engine."
        )
        self.poisonous = declare.counter(
            "penstock_poisonous_requests", "Requests that failed because they repeatedly crashed the engine."
        )

    def _declare_latencies(self, declare: Instruments) -> None:
        self.ttft = declare.histogram(
            "penstock_time_to_first_token_seconds",
            "Time from arrival to the first token (TTFT), by how the answer started.",
            TTFT_SECONDS,
            start=label_values.STARTS,
        )
        self.itl = declare.histogram(
            "penstock_inter_token_seconds", "Time between two tokens of one request (ITL).", ITL_SECONDS
        )
        self.tpot = declare.histogram(
            "penstock_time_per_output_token_seconds",
            "Mean time between tokens of a finished request with two or more.",
            ITL_SECONDS,
        )
        self.e2e = declare.histogram(
            "penstock_request_seconds", "Time from arrival to the end of finished requests.", LATENCY_SECONDS
        )
        self.resume_seconds = declare.histogram(
            "penstock_resume_seconds",
            "Time from an engine's death to a resumed request's next token.",
            LATENCY_SECONDS,
        )
        self.queue_seconds = declare.histogram(
            "penstock_queue_seconds",
            "Time from arrival to the engine: tokenizing and queueing.",
            LATENCY_SECONDS,
        )
        self.prefill_seconds = declare.histogram(
            "penstock_prefill_seconds",
            "Time from the engine to the first token: waiting for a slot, and prefill.",
            LATENCY_SECONDS,
        )
        self.decode_seconds = declare.histogram(
            "penstock_decode_seconds",
            "Time from the first to the last token of finished requests.",
            LATENCY_SECONDS,
        )
        self.cancel_seconds = declare.histogram(
            "penstock_cancel_seconds", "Cancel latency: Cancel sent to Retired received.", CANCEL_SECONDS
        )
        self.request_prompt_tokens = declare.histogram(
            "penstock_request_prompt_tokens", "Prompt tokens of finished requests.", TOKEN_COUNTS
        )
        self.request_output_tokens = declare.histogram(
            "penstock_request_output_tokens", "Tokens generated for finished requests.", TOKEN_COUNTS
        )

    def tenant_label(self, tenant: str) -> str:
        return tenant if tenant in self.tenants else label_values.OTHER

    def describe_build(self, labels: Mapping[str, str]) -> None:
        self.build.clear()
        self.build.labels(**labels).set(1)
