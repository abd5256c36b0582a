"""A request as a trace: its phases in sequence, in its client's trace if there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from trio.testing import MockClock, trio_test

from scheduler.request import GenerationRequest, Origin, TextPrompt
from scheduler.shared.messages import ScriptedPlan
from scheduler.telemetry.spans import RequestSpans
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running
from tests.scheduler.requests.records import make_record

CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CLIENTS[:-1] + "0"
WALL_SECONDS = 1_700_000_000


class Collected:
    """Spans in memory. The wall clock advances with the virtual one, from a time of its own."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = RequestSpans(
            SimpleSpanProcessor(self._exporter),
            "tiny",
            wall_ns=lambda: int((WALL_SECONDS + trio.current_time() - self._start) * 1e9),
        )
        self._start = trio.current_time()

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


def seconds(span: ReadableSpan) -> tuple[float, float]:
    """Return start and end after the trace's beginning on the wall clock."""
    assert span.start_time is not None
    assert span.end_time is not None
    start, end = (round(at / 1e9 - WALL_SECONDS, 3) for at in (span.start_time, span.end_time))
    return start, end


async def traced(request: GenerationRequest, plan: ScriptedPlan | None = None) -> dict[str, ReadableSpan]:
    collected = Collected()
    scheduler = make_scheduler(LoopbackLauncher(), plan, tracer=collected.tracer.trace)
    async with running(scheduler):
        await answer(scheduler, request)
    return collected.spans


@trio_test
async def test_phases_follow_each_other_and_fill_the_request(autojump_clock: MockClock) -> None:
    """On the wall clock; children of the request's span, in one trace."""
    spans = await traced(ask(max_tokens=4), ScriptedPlan(step_seconds=0.5))
    root = spans["chat tiny"]
    assert root.kind is SpanKind.SERVER
    assert root.context is not None
    assert root.parent is None
    assert {name: seconds(span) for name, span in spans.items()} == {
        "queue": (0.0, 0.0),
        "prefill": (0.0, 0.5),
        "decode": (0.5, 2.0),
        "chat tiny": (0.0, 2.0),
    }
    for name in ("queue", "prefill", "decode"):
        parent = spans[name].parent
        assert parent is not None
        assert (parent.trace_id, parent.span_id) == (root.context.trace_id, root.context.span_id)


@trio_test
async def test_it_says_what_the_conventions_ask_and_no_word_of_the_prompt(autojump_clock: MockClock) -> None:
    """Models, tokens, parameters, finish reason; and our attributes for the tenant and the ids."""
    request = replace(ask("a secret", max_tokens=4, tenant="acme", session="s1"), origin=Origin("mine"))
    root = (await traced(request))["chat tiny"]
    assert dict(root.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "test-a secret",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.response.time_to_first_chunk": pytest.approx(0.01),
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.usage.input_tokens": len("<user>a secret\n<assistant>"),
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.conversation.id": "s1",
        "penstock.outcome": "length",
        "penstock.tenant": "acme",
        "penstock.priority": 0,
        "penstock.request_id": "mine",
        "penstock.resumed": 0,
    }
    assert root.status.status_code is StatusCode.UNSET
    assert root.resource.attributes["service.name"] == "penstock"


def test_otels_own_variable_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "farm")
    spans = RequestSpans(SimpleSpanProcessor(InMemorySpanExporter()), "tiny")
    assert spans._provider.resource.attributes["service.name"] == "farm"


@trio_test
async def test_a_request_for_a_vector_is_no_chat(autojump_clock: MockClock) -> None:
    collected, record = Collected(), make_record(1)
    record.request = replace(ask(), kind="embedding")
    collected.tracer.trace(record, trio.current_time())
    assert collected.spans.keys() == {"embeddings tiny", "queue"}


@trio_test
async def test_a_clients_trace_goes_on(autojump_clock: MockClock) -> None:
    """Its span is the parent of the request's."""
    root = (await traced(replace(ask(), origin=Origin(traceparent=CLIENTS))))["chat tiny"]
    assert root.parent is not None
    assert f"{root.parent.trace_id:032x}" in CLIENTS
    assert f"{root.parent.span_id:016x}" in CLIENTS


@pytest.mark.parametrize("header", ["", "rubbish", CLIENTS[:-3], "00-" + "0" * 32 + CLIENTS[35:], "\n" * 9])
def test_a_false_trace_header_fails_nothing(header: str) -> None:
    """The request then gets a new trace."""

    @trio_test
    async def check(autojump_clock: MockClock) -> None:
        root = (await traced(replace(ask(), origin=Origin(traceparent=header))))["chat tiny"]
        assert root.parent is None

    check(autojump_clock=MockClock(autojump_threshold=0))


@trio_test
async def test_a_client_that_records_nothing_is_not_recorded(autojump_clock: MockClock) -> None:
    """According to its header."""
    assert await traced(replace(ask(), origin=Origin(traceparent=UNSAMPLED))) == {}


@trio_test
async def test_what_fails_is_an_error_and_what_never_began_has_no_span(autojump_clock: MockClock) -> None:
    """Here a deadline that passes in the queue behind another request."""
    collected = Collected()
    scheduler = make_scheduler(LoopbackLauncher(), max_slots=1, lookahead=0, tracer=collected.tracer.trace)
    async with running(scheduler), scheduler.stream(ask("first", max_tokens=1000)):
        await trio.sleep(0.1)
        await answer(scheduler, replace(ask("late", timeout_seconds=1.0), prompt=TextPrompt("late")))
        spans = collected.spans
    assert set(spans) == {"text_completion tiny", "queue"}
    root = spans["text_completion tiny"]
    assert root.status.status_code is StatusCode.ERROR
    assert (root.attributes or {})["error.type"] == "deadline"
    assert "gen_ai.response.finish_reasons" not in (root.attributes or {})
    assert seconds(root) == seconds(spans["queue"]) == (0.1, 1.1)


@trio_test
async def test_a_client_that_leaves_is_no_error_of_ours(autojump_clock: MockClock) -> None:
    """Its span says that it was cancelled."""
    collected = Collected()
    scheduler = make_scheduler(LoopbackLauncher(), tracer=collected.tracer.trace)
    async with running(scheduler):
        async with scheduler.stream(ask(max_tokens=1000)):
            await trio.sleep(0.1)
        await scheduler.wait_idle()
    root = collected.spans["chat tiny"]
    assert root.status.status_code is StatusCode.UNSET
    assert (root.attributes or {})["penstock.outcome"] == "cancelled"
