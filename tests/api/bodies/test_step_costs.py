"""What comes between an engine's step and the sockets, with 16 choices that end in one step.

Every function in between runs in a task of the loop, so each task's CPU time between two of its waits is what
nobody else gets a turn in. Texts, schemas and stop strings are those that cost their server seconds.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from starlette.types import Message

from api.answers.event_stream import _send_all
from api.bodies.worker_threads import WorkerThreads
from api.dialects.openai.encode import ChunkEncoder
from api.dialects.responses.encode import ResponseEncoder
from api.dialects.responses.envelope import Envelope
from api.dialects.responses.event_log import EventLog
from api.dialects.responses.schema import CreateResponse
from scheduler.answer.answer_format import AnswerFormat, tool_syntax
from scheduler.answer.assembly import Assembly
from scheduler.answer.detokenizer import Detokenizer
from scheduler.answer.pipeline import AnswerPipeline
from scheduler.answer.stop_strings import WantedStrings
from scheduler.answer.token_spans import TokenSpans
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.events import Failed, Finished, FinishReason, StreamEvent, TextDelta, TokenLogprobs, Usage
from scheduler.request import Sampling, Tool
from scheduler.requests.answer_reading import STEP_SECONDS, AnswerReading
from scheduler.requests.mailbox import Doorbell, Mailbox
from scheduler.requests.stream import RequestStream
from scheduler.shared.messages import Counters, LogprobsOut, Retired, StepOutput, TokenOut
from tests.examples import sampled
from tests.scheduler.answer.adversarial import MARKS, texts
from tests.scheduler.answer.notations import HARMONY
from tests.scheduler.requests.board import Board
from tests.scheduler.requests.records import make_record

_CHOICES = 16
_MARKS = "marks of "
_SAMPLE = ("glm47", "json_tools", "pythonic")
"""JSON, tags and Python; the other parsers' marks are tried by `make test-long`."""
_MOST_SECONDS = 3 * STEP_SECONDS
"""One task may take this at once: a step's budget, what the last token in it takes more, and as much
again for a machine with more to do than cores."""


@dataclass(frozen=True)
class Hostile:
    """`text` is written by every choice, in pieces of `piece` characters, each a token."""

    form: AnswerFormat
    text: str
    tools: tuple[Tool, ...] = ()
    stop: tuple[str, ...] = ()
    piece: int = 4
    top_logprobs: int | None = None


class Words(Detokenizer):
    """A detokenizer of a text: token N is its Nth piece."""

    begun = True

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces

    def feed(self, token_id: int) -> str:
        return self._pieces[token_id]

    def finish(self) -> str:
        return ""


@dataclass(eq=False)
class Longest(trio.abc.Instrument):
    """The CPU time of the longest turn of a task."""

    seconds: float = 0.0
    _begun: float = field(default=0.0)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begun = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.seconds = max(self.seconds, time.thread_time() - self._begun)


def longest_turn(hostile: Hostile) -> tuple[float, list[list[StreamEvent]]]:
    """Return the longest turn of any task, in seconds, and what the choices' readers got."""
    board, doorbell = Board(), Doorbell()
    board.reading = board.multiplexer._reading = AnswerReading(
        WorkerThreads(2), board.requests, board.reconcile
    )
    pieces = [hostile.text[at : at + hostile.piece] for at in range(0, len(hostile.text), hostile.piece)]
    offered, stops = OfferedTools(hostile.tools), WantedStrings(hostile.stop)
    records = []
    for number in range(1, _CHOICES + 1):
        record = make_record(number, tenant="hostile", max_tokens=len(pieces))
        spans = None if hostile.top_logprobs is None else TokenSpans(lambda token: b"word")
        assembly = Assembly(hostile.form, offered, str, in_reasoning=False, parallel_calls=True, spans=spans)
        record.pipeline = AnswerPipeline(Words(pieces), stops, assembly, spans=spans)
        record.mailbox = Mailbox(doorbell)
        records.append(board.submit(record))
    stream = RequestStream(records, doorbell)
    longest, got = Longest(), [[] for _ in records]  # type: ignore[var-annotated]
    encoder = ChunkEncoder("chatcmpl-1", 0, "model", include_usage=True)
    encoder.start(1)

    async def read() -> None:
        while True:
            try:
                choice, event = await stream.receive_choice()
            except trio.EndOfChannel:
                return
            assert not isinstance(event, Failed), event
            got[choice].append(event)
            encoder.event(choice, event)  # type: ignore[arg-type]
            await trio.lowlevel.checkpoint()

    async def step() -> None:
        top = None if hostile.top_logprobs is None else ((0, -1.0),) * hostile.top_logprobs
        logprobs = None if top is None else LogprobsOut(-1.0, top)
        for token in range(len(pieces)):
            tokens = [TokenOut(one.request_id, token, logprobs) for one in records if one.listening]
            last = token == len(pieces) - 1
            # As the engine has it: of what was cancelled it says no more.
            held = [one.request_id for one in board.on_board]
            ended = [Retired(one, "length") for one in held] if last else []
            tokens = [one for one in tokens if one.request_id in held]
            board.route(StepOutput(tokens, [], ended, Counters()))
            await trio.lowlevel.checkpoint()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(board.reading.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(read)
            with trio.fail_after(60):
                await step()
                while not all(record.mailbox.ended for record in records):  # noqa: ASYNC110 (threads work)
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    gc.collect()
    gc.disable()
    try:
        trio.run(run, instruments=[longest])
    finally:
        gc.enable()
    return longest.seconds, got


def _ladder(keyword: str, last: str) -> dict[str, object]:
    """A value of it takes 2^25 visits."""
    steps = {f"l{i}": {keyword: [{"$ref": f"#/$defs/l{i + 1}"}] * 2} for i in range(25)}
    properties = {"a": {"$ref": "#/$defs/l0"}, "city": {"$ref": "#/$defs/l0"}}
    return {"type": "object", "properties": properties, "$defs": {**steps, "l25": {"type": last}}}


_SELF = {"allOf": [{"$ref": "#"}, {"$ref": "#"}], "properties": {"a": {"$ref": "#"}}}
_SELF_REFERRING = tuple(Tool(f"t{number}", "", dict(_SELF)) for number in range(128))
_LADDERS = tuple(
    Tool(name, "", _ladder(keyword, last))
    for name, keyword, last in (("f", "allOf", "string"), ("g", "anyOf", "integer"), ("h", "oneOf", "string"))
)
_CHOICES_OF = Tool("f", "", {"properties": {"a": {"enum": [f"word{n}" for n in range(50_000)]}}})
_WIDE = Tool("f", "", {"properties": {f"p{n}": {"type": ["string", "null"]} for n in range(5_000)}})


def _form(parser: str) -> AnswerFormat:
    return AnswerFormat(tools=tool_syntax(parser))


def _call(parser: str, text: str) -> str:
    syntax = tool_syntax(parser)
    return f"{syntax.start}{text}{syntax.end}"


def _cases() -> Iterator[tuple[str, Hostile]]:
    call = '{"name": "%s", "arguments": %s}'
    json_form = _form("json_tools")
    yield "128 tools that refer to themselves", Hostile(json_form, _call("json_tools", "x"), _SELF_REFERRING)
    yield "the same in tags", Hostile(_form("qwen3_coder"), _call("qwen3_coder", "x"), _SELF_REFERRING)
    for name in "fgh":
        text = _call("json_tools", call % (name, '{"city": "Oslo", "a": 3}'))
        yield f"ladder {name}", Hostile(json_form, text, _LADDERS)
    glm = "".join(f"<arg_key>a{n}</arg_key><arg_value>{n}</arg_value>" for n in range(100))
    yield "ladder in tags", Hostile(_form("glm47"), _call("glm47", "f" + glm), _LADDERS)
    words = json.dumps({"a": "word49999"})
    yield "a word of 50,000", Hostile(json_form, _call("json_tools", call % ("f", words)), (_CHOICES_OF,))
    wide = json.dumps({f"p{n}": None for n in range(0, 5_000, 50)})
    yield "5,000 parameters", Hostile(json_form, _call("json_tools", call % ("f", wide)), (_WIDE,), piece=16)
    deep = json.dumps({"a": [[{"a": [n, "x" * 20]}] * 3 for n in range(100)]})
    for name, tools in (("few tools", (Tool("f"),)), ("ladders", _LADDERS)):
        text = _call("json_tools", call % ("f", deep))
        yield f"huge arguments, {name}", Hostile(json_form, text, tools, piece=64)
    text = f"<|channel|>commentary to=functions.f<|message|>{deep}<|call|>"
    yield "huge arguments of harmony", Hostile(HARMONY, text, _LADDERS, piece=64)
    stops = tuple(("ab" * 128)[: 250 - n] + f"c{n:05}" for n in range(64))
    yield "64 stop strings", Hostile(AnswerFormat(), "ab" * 1200, stop=stops)
    unicode = "🦊e\u0301\u2028\ud7ff\u200d"
    yield "Unicode", Hostile(AnswerFormat(), unicode * 300, stop=(unicode * 40 + "x",), piece=1)
    yield "log-probabilities", Hostile(AnswerFormat(), "word" * 200, top_logprobs=20)
    yield "half marks", Hostile(json_form, "<tool_cal" * 400, (Tool("f"),), piece=9)
    for number, parser in enumerate(sorted(MARKS)):
        all_texts = list(texts(parser, 4_000))
        text = _call(parser, all_texts[number % len(all_texts)])
        yield f"{_MARKS}{parser}", Hostile(_form(parser), text, (*_LADDERS, *_SELF_REFERRING[:4]), piece=64)


CASES = dict(_cases())
_EVERY_RUN = [name for name in CASES if not name.startswith(_MARKS) or name.removeprefix(_MARKS) in _SAMPLE]


@pytest.mark.parametrize("name", sampled(CASES, _EVERY_RUN))
def test_no_task_holds_the_loop_longer_than_a_step_may(name: str) -> None:
    """Once in three runs: a machine may be late, a function that takes seconds takes them always."""
    turns = (longest_turn(CASES[name])[0] for _ in range(3))
    assert any(seconds < _MOST_SECONDS for seconds in turns)


@pytest.mark.parametrize("name", ["ladder f", "huge arguments, ladders", "64 stop strings"])
def test_all_choices_get_the_same(name: str) -> None:
    """Whether a worker read it or the loop, and in whatever order."""
    _, got = longest_turn(CASES[name])
    finals = [events[-1] for events in got]
    assert all(isinstance(final, Finished) for final in finals)
    texts_of = ["".join([getattr(event, "text", "") or "" for event in events]) for events in got]
    assert len(set(texts_of)) == 1


def _longest_turn_of_an_end(tokens: int) -> float:
    """Return the longest turn of the task that sends the end of a response in the background, with this many
    tokens and 20 alternatives of each."""
    entry = TokenLogprobs.of(0, -1.0, ((1, -2.0),) * 20, lambda token: b"word")
    ended = Finished(FinishReason.STOP, Usage(1, 0, tokens, 0))
    stored, log, longest = list[bytes](), EventLog(max_bytes=1 << 30), Longest()
    body = CreateResponse.model_validate({"input": "x"})
    envelope = Envelope.of(body, "resp_1", "m", Sampling(), {})
    encoder = ResponseEncoder(envelope, lambda status, text, blocks: stored.append(text))
    for _ in range(tokens // 32):
        encoder.event(0, TextDelta("word " * 32, (entry,) * 32))

    async def send(message: Message) -> None:
        log.add(message["body"])
        await trio.lowlevel.checkpoint()

    async def end() -> None:
        await _send_all(send, encoder.event(0, ended), encoder.finish(ended.usage))

    gc.disable()
    trio.run(end, instruments=[longest])
    gc.enable()
    assert len(stored[0]) > 1000 * tokens
    assert log.bytes > 4 * len(stored[0])
    return longest.seconds


def test_nor_does_the_end_of_a_stream_with_log_probabilities() -> None:
    """50 MB, four times: they were joined, stored and logged in one turn, 0.8 s. A step may take 50 ms."""
    turns = (_longest_turn_of_an_end(30_000) for _ in range(3))
    assert any(seconds < 0.05 for seconds in turns)
