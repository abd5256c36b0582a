"""Every metric's name, help, labels and buckets; one engine's are in `engine_metrics.py`.

One registry per server, in the server only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from prometheus_client import CollectorRegistry

from scheduler.telemetry import labels as label_values
from scheduler.telemetry.engine_metrics import EngineFigures, EngineMetrics
from scheduler.telemetry.instruments import ENGINE, MODEL, Families, Instruments

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
CANCEL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_VERSIONS = ("version", "python", "mlx")


class ModelMetrics:
    """The series of one model, labelled with its name: its requests, its queue, its pool. And those of each
    of its engines."""

    def __init__(self, server: Metrics, model: str, families: Families, of_engines: Families) -> None:
        """`families` and `of_engines` are those of all models, and of all models' engines."""
        self.server = server
        self.model = model
        self.tenants = server.tenants
        self._engines: dict[str, EngineMetrics] = {}
        self._of_engines = of_engines
        declare = Instruments(families, {MODEL: model})
        self._declare_requests(declare)
        self._declare_queue(declare)
        self._declare_pool(declare)
        self._declare_latencies(declare)

    @property
    def registry(self) -> CollectorRegistry:
        """Return the registry of all metrics, the server's and every model's."""
        return self.server.registry

    @property
    def engines(self) -> Sequence[EngineMetrics]:
        """Return the metrics of every engine of this model that has not left, the first one first."""
        return tuple(self._engines.values())

    def of_engine(self, engine: str) -> EngineMetrics:
        """Return an engine's series; they are made when its name is new."""
        if engine not in self._engines:
            labels = {MODEL: self.model, ENGINE: engine}
            self._engines[engine] = EngineMetrics(Instruments(self._of_engines, labels))
        return self._engines[engine]

    def forget_engine(self, engine: str) -> None:
        """Remove the series of an engine that has left for good. Samples that come later are lost."""
        self._engines.pop(engine, None)
        self._of_engines.forget({MODEL: self.model, ENGINE: engine})

    def _declare_requests(self, declare: Instruments) -> None:
        self.requests = declare.counters(
            "penstock_requests", "Requests by their one terminal outcome.", outcome=label_values.OUTCOMES
        )
        self.rejections = declare.counters(
            "penstock_rejections",
            'Requests refused before they were queued, by reason; each is also an outcome "rejected".',
            reason=label_values.REJECTIONS,
        )
        self.malformed_calls = declare.open_counter(
            "penstock_malformed_tool_calls",
            "Tool calls that cannot be read, by notation, and by what is wrong.",
            *("notation", "kind"),
        )
        self.prompt_tokens = declare.counter(
            "penstock_prompt_tokens", "Prompt tokens of accepted requests; a prompt's choices share it."
        )
        self.tokenized = declare.counters(
            "penstock_tokenized_tokens",
            "Prompt tokens by whether the ids of their piece of text were kept, or had to be made.",
            ids=label_values.PIECE_IDS,
        )
        self.pieces_bytes = declare.gauge(
            "penstock_prompt_pieces_bytes", "Memory of the kept token ids of pieces of prompts."
        )
        self.late_tokens = declare.counter(
            "penstock_late_tokens",
            "Tokens dropped because they arrived after the answer's end or the request's cancel.",
        )

    def _declare_queue(self, declare: Instruments) -> None:
        self.queued = declare.gauge("penstock_queued_requests", "Accepted requests waiting for an engine.")
        self.queued_tokens = declare.gauge(
            "penstock_queued_prompt_tokens", "Prompt tokens of those requests."
        )
        self.oldest_queued = declare.gauge(
            "penstock_oldest_queued_seconds", "Wait of the oldest of those requests."
        )
        tenants = (*self.tenants, label_values.OTHER)
        self.service_gap = declare.gauge(
            "penstock_service_gap_tokens",
            "Largest difference of attained service between two waiting tenants of one priority.",
        )
        self.tenant_prefill = declare.counters(
            "penstock_tenant_prefill_tokens",
            "Prompt tokens computed for a tenant's requests.",
            tenant=tenants,
        )
        self.tenant_output = declare.counters(
            "penstock_tenant_output_tokens", "Tokens generated for a tenant's requests.", tenant=tenants
        )
        self.tenant_queued = declare.gauges(
            "penstock_tenant_queued_requests", "Waiting requests of a tenant.", tenant=tenants
        )
        self.tenant_oldest = declare.gauges(
            "penstock_tenant_oldest_queued_seconds", "Wait of the oldest of those requests.", tenant=tenants
        )

    def _declare_pool(self, declare: Instruments) -> None:
        self.by_condition = declare.gauges(
            "penstock_engines", "Engines by condition.", condition=label_values.CONDITIONS
        )
        self.loads = declare.counter(
            "penstock_model_loads", "Times that the model was loaded, the start of the server included."
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
        self.ttft = declare.histograms(
            "penstock_time_to_first_token_seconds",
            "Time from arrival to the first token (TTFT), by how the answer started.",
            TTFT_SECONDS,
            start=label_values.STARTS,
        )
        self.itl = declare.histogram(
            "penstock_inter_token_seconds",
            "Time between two steps that gave a request tokens, one or several (ITL).",
            ITL_SECONDS,
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


class Metrics:
    """The instruments of the whole server, and those of each model that it serves."""

    def __init__(self, tenants: Collection[str] = ()) -> None:
        """`tenants` have their own label; all others are "other"."""
        self.registry = CollectorRegistry()
        self.tenants = tuple(sorted(set(tenants)))
        self._models: dict[str, ModelMetrics] = {}
        self._of_models, self._of_engines = Families(self.registry), Families(self.registry)
        self.registry.register(EngineFigures(lambda: [one for model in self.models for one in model.engines]))
        declare = Instruments(Families(self.registry), {})
        self._declare_server(declare)
        self._declare_http(declare)

    @property
    def models(self) -> Sequence[ModelMetrics]:
        """Return the metrics of every model, the first one first."""
        return tuple(self._models.values())

    def of_model(self, model: str) -> ModelMetrics:
        """Return a model's series, made when its name is new. Only the operator names models."""
        if model not in self._models:
            self._models[model] = ModelMetrics(self, model, self._of_models, self._of_engines)
        return self._models[model]

    def _declare_server(self, declare: Instruments) -> None:
        self.build = declare.open_gauge(
            "penstock_build_info",
            "Always 1; the versions are in the labels.",
            *_VERSIONS,
        )
        self.telemetry_failures = declare.counters(
            "penstock_telemetry_failures",
            "Exceptions in telemetry: each lost a sample or a log line.",
            part=label_values.TELEMETRY_PARTS,
        )

    def _declare_http(self, declare: Instruments) -> None:
        self.http_requests = declare.open_counter(
            "penstock_http_requests",
            "HTTP responses started, by route template and status; 499: the client left before.",
            "method",
            "route",
            "status",
        )
        self.bodies_with_ignored_fields = declare.open_counter(
            "penstock_bodies_with_ignored_fields", "Bodies with fields that no schema knows.", "route"
        )
        self.http_connections = declare.gauge("penstock_http_connections", "Open connections of clients.")
        self.http_refusals = declare.counters(
            "penstock_http_refusals",
            "Requests and connections that the HTTP server refused, by reason.",
            reason=label_values.HTTP_REFUSALS,
        )
        self.accept_failures = declare.counter(
            "penstock_http_accept_failures", "Failed accept calls, mostly for lack of file descriptors."
        )

    def describe_build(self, labels: Mapping[str, str]) -> None:
        self.build.clear()
        self.build.labels(*(labels[name] for name in _VERSIONS)).set(1)
