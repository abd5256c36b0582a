"""Every metric's name, labels and buckets, and nothing else's business. One registry a service, in the
parent only."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from scheduler.statistics import DeathCause

# A second sample for each counter and bucket row, which nothing here asks for: a third of the exposition.
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

STARTS = ("cold", "warm", "resumed")
"""Of an answer. Warm: at least half of the prompt was not computed, because the prefix cache had it. Resumed:
an engine died before the first token, and another one gave it."""
BANDS = ("urgent", "normal", "background")
"""Priorities below, at and above 0: three values, where 21 would be mostly empty."""
STATES = ("submitted", "prefilling", "decoding", "awaiting_engine", "cancelling")
EVICTIONS = ("budget", "superseded", "cleared")
STEPS = ("decode", "mixed", "prefill")
"""A step by what it computed: tokens of answers, prompts, or both."""
ENGINE_PARTS = ("model", "bookkeeping", "between")
"""Where the engine's time goes: mlx-lm's step, what we do around it inside a step, and between two steps
while rows wait. The last two are overhead (on a GPU an upper bound: it computes meanwhile)."""
OUTCOMES = ("stop", "length", "tool_calls", "cancelled", "deadline", "rejected", "invalid", "error")
RESTART_CAUSES = tuple(cause.value for cause in DeathCause if cause is not DeathCause.STOPPED)
REJECTIONS = ("queue_full", "tenant_limit", "draining", "deadline", "unavailable")
HTTP_REFUSALS = (
    *("too_many_connections", "header_timeout", "headers_too_large", "malformed_request"),
    *("unsupported_protocol", "body_timeout", "body_too_large", "internal_error", "write_timeout"),
)
OTHER = "other"
"""The label of every tenant that the operator did not name, of routes that there are not, and so on."""
TELEMETRY_PARTS = ("samples", "log", "recent", "tracer", "engine_totals")
METHODS = ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS")
LONG_GAP_SECONDS = 0.5
"""Gaps between tokens from here on leave the id of their request: one exemplar a token would cost more than
it tells."""


class Metrics:
    """The instruments. Outcomes are set to zero at the start, so that `rate()` works from the first."""

    def __init__(self, tenants: Collection[str] = ()) -> None:
        """`tenants` are those with a label of their own; the rest are "other", however many there are."""
        self.registry = CollectorRegistry()
        self.tenants = tuple(sorted(set(tenants)))
        self.requests = self._counter(
            "penstock_requests",
            "Requests by their one terminal outcome.",
            "outcome",
        )
        for outcome in OUTCOMES:
            self.requests.labels(outcome)
        self.rejections = self._counter(
            "penstock_rejections",
            'Requests refused before they were queued, by reason; each is also an outcome "rejected".',
            "reason",
        )
        for reason in REJECTIONS:
            self.rejections.labels(reason)
        self.build = self._gauge(
            "penstock_build_info",
            "Always 1; what runs is in the labels.",
            "version",
            "python",
            "mlx",
        )
        self.model = self._gauge(
            "penstock_model_info",
            "1 since the first engine was ready; the model and where it runs are in the labels.",
            "model",
            "model_type",
            "device",
            "weights_dtype",
        )
        self.http_requests = self._counter(
            "penstock_http_requests",
            "HTTP answers begun, by route template and status; answers to clients that left before are 499.",
            "method",
            "route",
            "status",
        )
        self.http_connections = self._gauge("penstock_http_connections", "Open connections of clients.")
        self.http_refusals = self._counter(
            "penstock_http_refusals",
            "Requests and connections that the HTTP server ended by itself, by reason.",
            "reason",
        )
        for reason in HTTP_REFUSALS:
            self.http_refusals.labels(reason)
        self.accept_failures = self._counter(
            "penstock_http_accept_failures", "Failed attempts to accept: no file descriptors, mostly."
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
            "penstock_oldest_queued_seconds", "For how long the oldest of them has waited."
        )
        self.band_queued = self._gauge(
            "penstock_band_queued_requests", "Requests waiting, by the sign of their priority.", "band"
        )
        self.band_tokens = self._gauge(
            "penstock_band_queued_prompt_tokens", "Prompt tokens of those requests.", "band"
        )
        self.band_oldest = self._gauge(
            "penstock_band_oldest_queued_seconds", "For how long the oldest of them has waited.", "band"
        )
        self.service_gap = self._gauge(
            "penstock_service_gap_tokens",
            "Largest difference of attained service between two tenants that wait with one priority.",
        )
        for band in BANDS:
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
            "penstock_tenant_queued_requests", "A tenant's requests that wait.", "tenant"
        )
        self.tenant_oldest = self._gauge(
            "penstock_tenant_oldest_queued_seconds", "For how long the oldest of them has waited.", "tenant"
        )
        for tenant in (*self.tenants, OTHER):
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
        for state in STATES:
            self.by_state.labels(state)
        self.stalled_seconds = self._gauge(
            "penstock_stalled_seconds", "With work in the engine: silence since its last step; else 0."
        )
        self.last_step_age = self._gauge(
            "penstock_last_step_age_seconds", "Since the engine's last step, idle or not; 0 before the first."
        )
        self.slots = self._gauge("penstock_slots", "Slots there are.")
        self.kv_bytes = self._gauge("penstock_kv_bytes", "Bytes of key-value cache held by running rows.")
        self.kv_budget = self._gauge(
            "penstock_kv_budget_bytes",
            "What running rows and kept prefixes may hold together; 0 until the engine has told.",
        )
        self.row_tokens = self._gauge(
            "penstock_row_tokens", "Tokens of running rows, each counted for every row that has it."
        )
        self.shared_row_tokens = self._gauge(
            "penstock_shared_row_tokens", "Those of them that rows attend to in the prefix cache, uncopied."
        )
        self.weights_bytes = self._gauge("penstock_weights_bytes", "Bytes of the model's weights.")
        self.kv_cache_share = self._gauge(
            "penstock_kv_cache_share",
            "Of the budget for keys and values, what may be used: lowered when an engine runs out of memory.",
        )
        self.kv_cache_share.set(1)
        self.engine_up = self._gauge("penstock_engine_up", "1 while the engine can take requests.")
        self.engine_deaths = self._counter("penstock_engine_deaths", "Engine processes that ended.")
        self.engine_restarts = self._counter(
            "penstock_engine_restarts",
            "Those deaths by cause, read from its stderr and its exit status.",
            "cause",
        )
        for cause in RESTART_CAUSES:
            self.engine_restarts.labels(cause)
        self.resumed = self._counter(
            "penstock_resumed_requests", "Times that a request went on with another engine."
        )
        self.poisonous = self._counter(
            "penstock_poisonous_requests", "Requests failed because engines died of them."
        )
        self.telemetry_failures = self._counter(
            "penstock_telemetry_failures",
            "Exceptions in the server's own telemetry: a sample, a log line or a span is missing.",
            "part",
        )
        for part in TELEMETRY_PARTS:
            self.telemetry_failures.labels(part)
        self.late_tokens = self._counter(
            "penstock_late_tokens",
            "Tokens that arrived for a request after its cancel was sent, and were dropped.",
        )
        self.prefilled_tokens = self._counter("penstock_prefilled_tokens", "Prompt tokens computed.")
        self.generated_tokens = self._counter("penstock_generated_tokens", "Tokens generated.")
        self.preemptions = self._counter(
            "penstock_preemptions", "Times that a running request gave way for lack of memory."
        )
        self.preempted = self._gauge(
            "penstock_preempted_requests", "Requests that have given way and wait to go on."
        )
        self.re_prefilled_tokens = self._counter(
            "penstock_re_prefilled_tokens", "Prompt tokens computed again after a preemption."
        )

    def _declare_steps(self) -> None:
        self.step_seconds = self._histogram(
            "penstock_engine_step_seconds",
            "Duration of steps, by what they computed.",
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
            "Seconds with work on board: in the model, in bookkeeping around it, between two steps.",
            "part",
        )
        for kind in STEPS:
            self.step_seconds.labels(kind)
        for part in ENGINE_PARTS:
            self.engine_seconds.labels(part)
        self.device_active = self._gauge(
            "penstock_device_active_bytes", "Bytes of the arrays that the engine holds, by MLX's allocator."
        )
        self.device_cached = self._gauge(
            "penstock_device_cached_bytes", "Bytes that MLX has freed and keeps for its next arrays."
        )
        self.device_peak = self._gauge(
            "penstock_device_peak_bytes", "Most bytes that were active at once since the engine started."
        )
        self.device_recommended = self._gauge(
            "penstock_device_recommended_bytes",
            "What the device says that a process should not exceed; 0 where it does not say (a CPU).",
        )

    def _declare_cache(self) -> None:
        self.prefix_query_tokens = self._counter(
            "penstock_prefix_query_tokens", "Prompt tokens that were looked up in the prefix cache."
        )
        self.prefix_hit_tokens = self._counter(
            "penstock_prefix_hit_tokens", "Prompt tokens that were found there and not computed."
        )
        self.prefix_stored_tokens = self._counter("penstock_prefix_stored_tokens", "Tokens put there.")
        self.prefix_evicted_tokens = self._counter(
            "penstock_prefix_evicted_tokens",
            "Tokens let go of: for lack of room, because a session's newer turn came, or cleared by hand.",
            "reason",
        )
        for reason in EVICTIONS:
            self.prefix_evicted_tokens.labels(reason)
        self.prefix_complaints = self._counter(
            "penstock_prefix_integrity_complaints", "Faults that the prefix cache's self-check found."
        )
        self.disk_hit_tokens = self._counter(
            "penstock_prefix_disk_hit_tokens", "Prompt tokens that came back from disk and were not computed."
        )
        self.disk_reads = self._counter("penstock_prefix_disk_reads", "Files read by the disk tier.")
        self.disk_writes = self._counter("penstock_prefix_disk_writes", "Files written by the disk tier.")
        self.disk_dropped_writes = self._counter(
            "penstock_prefix_disk_dropped_writes", "What the disk tier did not take: it was behind, or full."
        )
        self.disk_errors = self._counter(
            "penstock_prefix_disk_errors", "Files that were damaged, foreign or gone, and refused writes."
        )
        self.disk_bytes = self._gauge("penstock_prefix_disk_bytes", "Bytes that the disk tier holds.")
        self.prefix_tokens = self._gauge("penstock_prefix_tokens", "Tokens that the prefix cache holds.")
        self.prefix_bytes = self._gauge("penstock_prefix_bytes", "Bytes that the prefix cache holds.")

    def _declare_latencies(self) -> None:
        self.ttft = self._histogram(
            "penstock_time_to_first_token_seconds",
            "From arrival to the first token, by how the answer started.",
            TTFT_SECONDS,
            "start",
        )
        for start in STARTS:
            self.ttft.labels(start)
        self.itl = self._histogram(
            "penstock_inter_token_seconds", "Gap between two tokens of one request.", ITL_SECONDS
        )
        self.tpot = self._histogram(
            "penstock_time_per_output_token_seconds",
            "Mean gap of a finished request that has two tokens or more.",
            ITL_SECONDS,
        )
        self.e2e = self._histogram(
            "penstock_request_seconds", "From arrival to the end of finished requests.", LATENCY_SECONDS
        )
        self.resume_seconds = self._histogram(
            "penstock_resume_seconds", "From an engine's death to a request's next token.", LATENCY_SECONDS
        )
        self.queue_seconds = self._histogram(
            "penstock_queue_seconds", "From arrival to the engine: tokenizing and queueing.", LATENCY_SECONDS
        )
        self.prefill_seconds = self._histogram(
            "penstock_prefill_seconds",
            "From the engine to the first token: a wait for a slot there, and the prompt.",
            LATENCY_SECONDS,
        )
        self.decode_seconds = self._histogram(
            "penstock_decode_seconds",
            "From the first token of finished requests to the last.",
            LATENCY_SECONDS,
        )
        self.cancel_seconds = self._histogram(
            "penstock_cancel_seconds",
            "From a cancel sent to the engine's word that it holds nothing of the request.",
            CANCEL_SECONDS,
        )
        self.request_prompt_tokens = self._histogram(
            "penstock_request_prompt_tokens", "Prompt tokens of finished requests.", TOKEN_COUNTS
        )
        self.request_output_tokens = self._histogram(
            "penstock_request_output_tokens", "Tokens generated for finished requests.", TOKEN_COUNTS
        )

    def tenant_label(self, tenant: str) -> str:
        return tenant if tenant in self.tenants else OTHER

    def describe_build(self, labels: Mapping[str, str]) -> None:
        self.build.clear()
        self.build.labels(**labels).set(1)

    def describe_model(self, labels: Mapping[str, str]) -> None:
        """The one model there is; an engine that comes back may run on another device."""
        self.model.clear()
        self.model.labels(**labels).set(1)

    def _gauge(self, name: str, help_: str, *labels: str) -> Gauge:
        return Gauge(name, help_, labels, registry=self.registry)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(name, help_, labels, registry=self.registry)

    def _histogram(self, name: str, help_: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, help_, labels, buckets=buckets, registry=self.registry)
