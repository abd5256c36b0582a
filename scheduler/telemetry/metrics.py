"""Every metric's name, help, labels and buckets. One registry per service, in the parent process only."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from scheduler.telemetry import labels as label_values

# `_created` samples, which nothing here uses, would be a third of the exposition.
disable_created_metrics()

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


class Metrics:
    """The instruments. Outcomes start at zero, so that `rate()` sees the first one."""

    def __init__(self, tenants: Collection[str] = ()) -> None:
        """`tenants` have their own label; all others are "other"."""
        self.registry = CollectorRegistry()
        self.tenants = tuple(sorted(set(tenants)))
        self.requests = self._counter(
            "penstock_requests",
            "Requests by their one terminal outcome.",
            "outcome",
        )
        for outcome in label_values.OUTCOMES:
            self.requests.labels(outcome)
        self.rejections = self._counter(
            "penstock_rejections",
            'Requests refused before they were queued, by reason; each is also an outcome "rejected".',
            "reason",
        )
        for reason in label_values.REJECTIONS:
            self.rejections.labels(reason)
        self.build = self._gauge(
            "penstock_build_info",
            "Always 1; the versions are in the labels.",
            "version",
            "python",
            "mlx",
        )
        self.model = self._gauge(
            "penstock_model_info",
            "1 once the first engine was ready; the model, its device and its fallbacks are in the labels.",
            "model",
            "model_type",
            "device",
            "weights_dtype",
            "fallbacks",
        )
        self.http_requests = self._counter(
            "penstock_http_requests",
            "HTTP responses started, by route template and status; 499: the client left before.",
            "method",
            "route",
            "status",
        )
        self.bodies_with_ignored_fields = self._counter(
            "penstock_bodies_with_ignored_fields", "Bodies with fields that no schema knows.", "route"
        )
        self.http_connections = self._gauge("penstock_http_connections", "Open connections of clients.")
        self.http_refusals = self._counter(
            "penstock_http_refusals",
            "Requests and connections that the HTTP server refused, by reason.",
            "reason",
        )
        for reason in label_values.HTTP_REFUSALS:
            self.http_refusals.labels(reason)
        self.accept_failures = self._counter(
            "penstock_http_accept_failures", "Failed accept calls, mostly for lack of file descriptors."
        )
        self.malformed_calls = self._counter(
            "penstock_malformed_tool_calls", "Tool calls that cannot be parsed, by their syntax.", "dialect"
        )
        self._declare_queue()
        self._declare_tenants()
        self._declare_engine()
        self._declare_steps()
        self._declare_cache()
        self._declare_latencies()

    def _declare_queue(self) -> None:
        self.queued = self._gauge("penstock_queued_requests", "Accepted requests waiting for the engine.")
        self.queued_tokens = self._gauge("penstock_queued_prompt_tokens", "Prompt tokens of those requests.")
        self.oldest_queued = self._gauge(
            "penstock_oldest_queued_seconds", "Wait of the oldest of those requests."
        )
        self.band_queued = self._gauge(
            "penstock_band_queued_requests", "Waiting requests by the sign of their priority.", "band"
        )
        self.band_tokens = self._gauge(
            "penstock_band_queued_prompt_tokens", "Prompt tokens of those requests.", "band"
        )
        self.band_oldest = self._gauge(
            "penstock_band_oldest_queued_seconds", "Wait of the oldest of those requests.", "band"
        )
        self.service_gap = self._gauge(
            "penstock_service_gap_tokens",
            "Largest difference of attained service between two waiting tenants of one priority.",
        )
        for band in label_values.BANDS:
            for gauge in (self.band_queued, self.band_tokens, self.band_oldest):
                gauge.labels(band)
        self.prompt_tokens = self._counter("penstock_prompt_tokens", "Prompt tokens of accepted requests.")

    def _declare_tenants(self) -> None:
        self.tenant_prefill = self._counter(
            "penstock_tenant_prefill_tokens", "Prompt tokens computed for a tenant's requests.", "tenant"
        )
        self.tenant_output = self._counter(
            "penstock_tenant_output_tokens", "Tokens generated for a tenant's requests.", "tenant"
        )
        self.tenant_queued = self._gauge(
            "penstock_tenant_queued_requests", "Waiting requests of a tenant.", "tenant"
        )
        self.tenant_oldest = self._gauge(
            "penstock_tenant_oldest_queued_seconds", "Wait of the oldest of those requests.", "tenant"
        )
        for tenant in (*self.tenants, label_values.OTHER):
            for one in (self.tenant_prefill, self.tenant_output, self.tenant_queued, self.tenant_oldest):
                one.labels(tenant)

    def _declare_engine(self) -> None:
        self.in_engine = self._gauge("penstock_engine_requests", "Requests that the engine holds.")
        self.running = self._gauge("penstock_running_slots", "Slots in use, prefilling or decoding.")
        self.engine_waiting = self._gauge(
            "penstock_engine_waiting_requests", "Requests that the engine holds without a slot."
        )
        self.by_state = self._gauge(
            "penstock_engine_state_requests", "Requests that the engine holds, by state.", "state"
        )
        for state in label_values.STATES:
            self.by_state.labels(state)
        self.stalled_seconds = self._gauge(
            "penstock_stalled_seconds", "Time since the last step while the engine has work; else 0."
        )
        self.last_step_age = self._gauge(
            "penstock_last_step_age_seconds", "Time since the last step, idle or busy; 0 before the first."
        )
        self.slots = self._gauge("penstock_slots", "Number of slots.")
        self.kv_bytes = self._gauge("penstock_kv_bytes", "Bytes of KV cache that running rows hold.")
        self.kv_budget = self._gauge(
            "penstock_kv_budget_bytes",
            "Bytes that running rows and the prefix cache may hold together; 0 until the engine reports it.",
        )
        self.row_tokens = self._gauge(
            "penstock_row_tokens", "Tokens of running rows, shared ones counted once per row."
        )
        self.shared_row_tokens = self._gauge(
            "penstock_shared_row_tokens",
            "Tokens of running rows that are read from the prefix cache without a copy.",
        )
        self.weights_bytes = self._gauge("penstock_weights_bytes", "Bytes of the model's weights.")
        self.kv_cache_share = self._gauge(
            "penstock_kv_cache_share",
            "Share of the KV budget in use; lowered when an engine runs out of memory.",
        )
        self.kv_cache_share.set(1)
        self.chunk_ceiling = self._gauge(
            "penstock_prefill_chunk_ceiling_tokens", "Most prompt tokens a step; halved by a device timeout."
        )
        self.engine_up = self._gauge("penstock_engine_up", "1 while the engine can take requests.")
        self.engine_deaths = self._counter("penstock_engine_deaths", "Engine processes that ended.")
        self.engine_restarts = self._counter(
            "penstock_engine_restarts",
            "Engine deaths by cause, from stderr and the exit status.",
            "cause",
        )
        for cause in label_values.RESTART_CAUSES:
            self.engine_restarts.labels(cause)
        self.resumed = self._counter(
            "penstock_resumed_requests", "Times that a request was resumed on another engine."
        )
        self.session_moves = self._counter(
            "penstock_session_moves", "Requests that went to another engine than their session's last one."
        )
        self.poisonous = self._counter(
            "penstock_poisonous_requests", "Requests that failed because they repeatedly crashed the engine."
        )
        self.telemetry_failures = self._counter(
            "penstock_telemetry_failures",
            "Exceptions in telemetry: each lost a sample, a log line or a span.",
            "part",
        )
        for part in label_values.TELEMETRY_PARTS:
            self.telemetry_failures.labels(part)
        self.late_tokens = self._counter(
            "penstock_late_tokens",
            "Tokens dropped because they arrived after the request's cancel was sent.",
        )
        self.prefilled_tokens = self._counter("penstock_prefilled_tokens", "Prompt tokens computed.")
        self.generated_tokens = self._counter("penstock_generated_tokens", "Tokens generated.")
        self.preemptions = self._counter("penstock_preemptions", "Preemptions because KV memory ran out.")
        self.preempted = self._gauge(
            "penstock_preempted_requests", "Preempted requests that wait to continue."
        )
        self.re_prefilled_tokens = self._counter(
            "penstock_re_prefilled_tokens", "Prompt tokens computed again after a preemption."
        )

    def _declare_steps(self) -> None:
        self.step_seconds = self._histogram(
            "penstock_engine_step_seconds",
            "Duration of steps by kind: decode, mixed or prefill.",
            STEP_SECONDS,
            "kind",
        )
        self.step_rows = self._histogram(
            "penstock_engine_step_decode_rows", "Rows that got a token in a step.", STEP_ROWS
        )
        self.step_prefill = self._histogram(
            "penstock_engine_step_prefill_tokens", "Prompt tokens computed in a step.", STEP_TOKENS
        )
        self.engine_seconds = self._counter(
            "penstock_engine_seconds",
            "Seconds with work on board: in the model, in bookkeeping, between steps.",
            "part",
        )
        for kind in label_values.STEPS:
            self.step_seconds.labels(kind)
        for part in label_values.ENGINE_PARTS:
            self.engine_seconds.labels(part)
        self.device_active = self._gauge(
            "penstock_device_active_bytes", "Bytes of live arrays in MLX's allocator."
        )
        self.device_cached = self._gauge(
            "penstock_device_cached_bytes", "Freed bytes that MLX keeps for new arrays."
        )
        self.device_peak = self._gauge(
            "penstock_device_peak_bytes", "Peak of active bytes since the engine started."
        )
        self.memory_relief = self._gauge(
            "penstock_memory_relief",
            "What the engine gives up for lack of memory, and what came before: 1 cached prefixes, 2 large"
            " chunks, 3 admission, 4 running rows.",
        )
        self.memory_relief_changes = self._counter(
            "penstock_memory_relief_changes", "Changes of that level.", "direction"
        )
        for direction in label_values.DIRECTIONS:
            self.memory_relief_changes.labels(direction)
        self.memory_guard = self._gauge(
            "penstock_memory_guard_bytes",
            "The memory guard's last reading: used by the engine, its limit, what the system can still give,"
            " and the expected peak of a prefill chunk; -1: unknown.",
            "part",
        )
        for part in label_values.MEMORY_PARTS:
            self.memory_guard.labels(part)
        self.device_recommended = self._gauge(
            "penstock_device_recommended_bytes",
            "Working set that the device recommends; 0 if it has no figure (a CPU).",
        )

    def _declare_cache(self) -> None:
        self.prefix_query_tokens = self._counter(
            "penstock_prefix_query_tokens", "Prompt tokens looked up in the prefix cache."
        )
        self.prefix_hit_tokens = self._counter(
            "penstock_prefix_hit_tokens", "Prompt tokens found in the prefix cache, so not computed."
        )
        self.prefix_stored_tokens = self._counter(
            "penstock_prefix_stored_tokens", "Tokens inserted into the prefix cache."
        )
        self.prefix_evicted_tokens = self._counter(
            "penstock_prefix_evicted_tokens",
            "Evicted tokens: for lack of room, superseded by a session's newer turn, or cleared.",
            "reason",
        )
        for reason in label_values.EVICTIONS:
            self.prefix_evicted_tokens.labels(reason)
        self.prefix_complaints = self._counter(
            "penstock_prefix_integrity_complaints", "Faults found by the prefix cache's integrity check."
        )
        self.disk_hit_tokens = self._counter(
            "penstock_prefix_disk_hit_tokens", "Prompt tokens read from disk, so not computed."
        )
        self.disk_reads = self._counter("penstock_prefix_disk_reads", "Files read by the disk tier.")
        self.disk_writes = self._counter("penstock_prefix_disk_writes", "Files written by the disk tier.")
        self.disk_dropped_writes = self._counter(
            "penstock_prefix_disk_dropped_writes",
            "Writes that the disk tier dropped because it was behind or full.",
        )
        self.disk_errors = self._counter(
            "penstock_prefix_disk_errors", "Files that were damaged, foreign or missing, and failed writes."
        )
        self.disk_bytes = self._gauge("penstock_prefix_disk_bytes", "Bytes that the disk tier holds.")
        self.prefix_tokens = self._gauge("penstock_prefix_tokens", "Tokens that the prefix cache holds.")
        self.prefix_bytes = self._gauge("penstock_prefix_bytes", "Bytes that the prefix cache holds.")

    def _declare_latencies(self) -> None:
        self.ttft = self._histogram(
            "penstock_time_to_first_token_seconds",
            "Time from arrival to the first token (TTFT), by how the answer started.",
            TTFT_SECONDS,
            "start",
        )
        for start in label_values.STARTS:
            self.ttft.labels(start)
        self.itl = self._histogram(
            "penstock_inter_token_seconds", "Time between two tokens of one request (ITL).", ITL_SECONDS
        )
        self.tpot = self._histogram(
            "penstock_time_per_output_token_seconds",
            "Mean time between tokens of a finished request with two or more.",
            ITL_SECONDS,
        )
        self.e2e = self._histogram(
            "penstock_request_seconds", "Time from arrival to the end of finished requests.", LATENCY_SECONDS
        )
        self.resume_seconds = self._histogram(
            "penstock_resume_seconds",
            "Time from an engine's death to a resumed request's next token.",
            LATENCY_SECONDS,
        )
        self.queue_seconds = self._histogram(
            "penstock_queue_seconds",
            "Time from arrival to the engine: tokenizing and queueing.",
            LATENCY_SECONDS,
        )
        self.prefill_seconds = self._histogram(
            "penstock_prefill_seconds",
            "Time from the engine to the first token: waiting for a slot, and prefill.",
            LATENCY_SECONDS,
        )
        self.decode_seconds = self._histogram(
            "penstock_decode_seconds",
            "Time from the first to the last token of finished requests.",
            LATENCY_SECONDS,
        )
        self.cancel_seconds = self._histogram(
            "penstock_cancel_seconds",
            "Cancel latency: Cancel sent to Retired received.",
            CANCEL_SECONDS,
        )
        self.request_prompt_tokens = self._histogram(
            "penstock_request_prompt_tokens", "Prompt tokens of finished requests.", TOKEN_COUNTS
        )
        self.request_output_tokens = self._histogram(
            "penstock_request_output_tokens", "Tokens generated for finished requests.", TOKEN_COUNTS
        )

    def tenant_label(self, tenant: str) -> str:
        return tenant if tenant in self.tenants else label_values.OTHER

    def describe_build(self, labels: Mapping[str, str]) -> None:
        self.build.clear()
        self.build.labels(**labels).set(1)

    def describe_model(self, labels: Mapping[str, str]) -> None:
        """The served model; a restarted engine may run on another device."""
        self.model.clear()
        self.model.labels(**labels).set(1)

    def _gauge(self, name: str, help_: str, *labels: str) -> Gauge:
        return Gauge(name, help_, labels, registry=self.registry)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(name, help_, labels, registry=self.registry)

    def _histogram(self, name: str, help_: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, help_, labels, buckets=buckets, registry=self.registry)
