"""OpenTelemetry spans of requests that have ended, made from the times in their records.

A request is a span whose children are the phases of its time line (`requests/time_line.py`): queue
(tokenizing and waiting), prefill and decode; and, if they happened, waiting (for a slot, a prefix, memory),
preempted, awaiting_engine and resumed. Nothing is made while it runs, so tracing costs nothing per step or
token. Names are those of OpenTelemetry's semantic conventions for generative AI; attributes without one there
begin with `penstock.`. Imported only where `--otlp-endpoint` is given: the packages are the extra `otel`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from scheduler.request import ChatPrompt
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from scheduler.requests.time_line import phases
from scheduler.telemetry.observation import FINISHED

_TRACES_PATH = "/v1/traces"
_CLIENTS_OWN = ("cancelled", "invalid")
"""Outcomes that are not the server's error."""
_NAMES: dict[str, str] = {State.SUBMITTED: State.PREFILLING}
"""Names of spans that differ from their phase's. A phase stays SUBMITTED if the engine never reported on the
request."""
_propagator = TraceContextTextMapPropagator()
_VECTOR_OPERATIONS = {"embedding": "embeddings", "rerank": "rerank"}
"""The operations of requests for which no text is generated. The conventions have no name for the second."""


class RequestSpans:
    """Makes the spans of finished requests. `wall_ns`: nanoseconds since 1970; records have trio's clock."""

    def __init__(
        self, processor: SpanProcessor, model_name: str, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        """If the collector cannot be reached, spans are dropped and the SDK logs it; nothing is raised."""
        resource = Resource.create({"service.name": "penstock", "service.version": version("penstock")})
        # OTEL_SERVICE_NAME tells several servers apart.
        resource = resource.merge(OTELResourceDetector().detect())
        # Closed by `close`: at the interpreter's exit it could hold the process for half a minute.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("penstock")
        self._model_name = model_name
        self._wall_ns = wall_ns

    def trace(self, record: StreamRecord, now: float) -> None:
        offset_ns = self._wall_ns() - int(now * 1e9)

        def at(moment: float) -> int:
            return offset_ns + int(moment * 1e9)

        request = record.request
        written = "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion"
        operation = _VECTOR_OPERATIONS.get(request.kind, written)
        span = self._tracer.start_span(
            f"{operation} {self._model_name}",
            _parent(request.origin.traceparent),
            SpanKind.SERVER,
            {gen_ai.GEN_AI_OPERATION_NAME: operation, **self._attributes(record)},
            start_time=at(record.arrived_at),
        )
        if record.outcome not in (*FINISHED, *_CLIENTS_OWN):
            span.set_status(Status(StatusCode.ERROR, record.outcome))
            span.set_attribute(ERROR_TYPE, record.outcome or "error")
        inside = trace.set_span_in_context(span)
        for phase in phases(record.time_line.spans(now)):
            child = self._tracer.start_span(
                _NAMES.get(phase.phase, phase.phase),
                inside,
                attributes={"penstock.waits_for": phase.waits_for} if phase.waits_for else None,
                start_time=at(phase.start),
            )
            child.end(at(phase.end))
        span.end(at(now))

    def close(self) -> None:
        """Export the remaining spans. Blocks, for up to half a minute without a collector: call it in a
        thread that can be abandoned."""
        self._provider.shutdown()

    def _attributes(self, record: StreamRecord) -> dict[str, AttributeValue]:
        request, sampling = record.request, record.request.sampling
        attributes: dict[str, AttributeValue] = {
            gen_ai.GEN_AI_PROVIDER_NAME: "penstock",
            gen_ai.GEN_AI_REQUEST_MODEL: self._model_name,
            gen_ai.GEN_AI_RESPONSE_MODEL: self._model_name,
            gen_ai.GEN_AI_RESPONSE_ID: request.public_id,
            gen_ai.GEN_AI_REQUEST_MAX_TOKENS: record.submit.max_tokens,
            gen_ai.GEN_AI_REQUEST_TEMPERATURE: sampling.temperature,
            gen_ai.GEN_AI_REQUEST_TOP_P: sampling.top_p,
            gen_ai.GEN_AI_REQUEST_CHOICE_COUNT: request.choices,
            gen_ai.GEN_AI_USAGE_INPUT_TOKENS: len(record.submit.prompt),
            gen_ai.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: record.cached_tokens,
            gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: record.output_tokens,
            "penstock.outcome": record.outcome or "error",
            "penstock.tenant": request.tenant,
            "penstock.priority": request.priority,
            "penstock.request_id": request.origin.request_id,
            "penstock.resumed": record.resumed,
        }
        if record.outcome in FINISHED:
            attributes[gen_ai.GEN_AI_RESPONSE_FINISH_REASONS] = [record.outcome or ""]
        if request.session is not None:
            attributes[gen_ai.GEN_AI_CONVERSATION_ID] = request.session
        if record.first_token_at is not None:
            first = record.first_token_at - record.arrived_at
            attributes[gen_ai.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK] = first
        return attributes


def _parent(traceparent: str | None) -> Context:
    """Return the client's span; an invalid header starts a new trace."""
    return _propagator.extract({} if traceparent is None else {"traceparent": traceparent}, Context())


def otlp_spans(endpoint: str, model_name: str) -> RequestSpans:
    """Export spans by OTLP over HTTP. `endpoint` is the collector's address in the form of
    OTEL_EXPORTER_OTLP_ENDPOINT; OpenTelemetry's own variables set headers, certificates and sampling. A
    thread sends batches from a bounded queue."""
    base = endpoint.rstrip("/")
    exporter = OTLPSpanExporter(base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH)
    return RequestSpans(BatchSpanProcessor(exporter), model_name)
