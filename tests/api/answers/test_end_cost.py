"""What the end of a stream may cost the loop, in which nobody else has a turn."""

from __future__ import annotations

import gc
import time

import trio
from starlette.types import Message

from api.answers.event_stream import _send_all
from api.dialects.responses.encode import ResponseEncoder
from api.dialects.responses.envelope import Envelope
from api.dialects.responses.event_log import EventLog
from api.dialects.responses.schema import CreateResponse
from scheduler.events import Finished, FinishReason, TextDelta, TokenLogprobs, Usage
from scheduler.request import Sampling


class Longest(trio.abc.Instrument):
    """The CPU time of the longest turn of a task."""

    seconds = begun = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.begun = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.seconds = max(self.seconds, time.thread_time() - self.begun)


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


def test_the_end_of_a_stream_with_log_probabilities_takes_no_long_turn() -> None:
    """50 MB, four times: they were joined, stored and logged in one turn, 0.8 s. A step may take 50 ms."""
    turns = (_longest_turn_of_an_end(30_000) for _ in range(3))
    assert any(seconds < 0.05 for seconds in turns)
