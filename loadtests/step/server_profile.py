"""The server's part: `hooks/sitecustomize.py` installs it before the server is imported."""

from __future__ import annotations

import socket
import time
from collections import Counter
from contextvars import ContextVar
from typing import Any

from loadtests.step.parts import around, replace
from loadtests.step.record import Report
from loadtests.step.steps import Steps

_sending: ContextVar[tuple[int, int] | None] = ContextVar("sending", default=None)
"""The request whose stream this task writes, and how many of its tokens have come."""


class ServerProfile:
    """A run begins with the first stream, and is written when the last one has ended."""

    def __init__(self) -> None:
        self._report = Report("server")
        self._steps = Steps()
        self._streams = 0
        self._tokens: Counter[int] = Counter()
        """Tokens by request."""
        # trio takes the method when it is imported. What it returns from is written: the task that sent goes
        # on later.
        self._steps.parts.measure(socket.socket, "send", "write")
        around(socket.socket, "send", after=self._written)
        self._wrap()

    def _wrap(self) -> None:
        from api.answers.event_stream import EventStream
        from scheduler.answer import detokenizer
        from scheduler.engines.engine import Engine
        from scheduler.requests.multiplexer import Multiplexer
        from scheduler.requests.record import StreamRecord
        from scheduler.shared.framing import FrameReader

        for owner, name, part in (
            (FrameReader, "_decode", "parse"),
            (Engine, "step", "account"),
            (Multiplexer, "route", "route"),
            (detokenizer.TableDetokenizer, "feed", "detokenize"),
            (detokenizer.WindowDetokenizer, "feed", "detokenize"),
            (EventStream, "_encode", "encode"),
        ):
            self._steps.parts.measure(owner, name, part)
        # A step begins where its frame is read, and ends where the next one is.
        around(FrameReader, "_decode", before=self._next_step, after=self._parsed)
        # A token in the middle of a character gives no text: nothing is written for it.
        around(
            StreamRecord, "put", before=lambda own, _: self._stamp("text", own.request_id, own.output_tokens)
        )
        stream_next, whole_stream, profile = EventStream._next, EventStream.__call__, self

        async def following(own: EventStream, stream: Any) -> Any:
            choice, event = await stream_next(own, stream)
            one = stream._records[choice]
            _sending.set((one.request_id, one.output_tokens))
            return choice, event

        async def streaming(own: EventStream, *args: Any) -> None:
            if not profile._streams:
                profile._steps.begin(profile._report.is_counting())
            profile._streams += 1
            try:
                await whole_stream(own, *args)
            finally:
                _sending.set(None)
                profile._streams -= 1
                profile._steps.run.ended += 1
                if not profile._streams:
                    profile._steps.rest()
                    profile._report.send(profile._steps.run)

        replace(EventStream, "_next", following)
        replace(EventStream, "__call__", streaming)

    def _stamp(self, what: str, request_id: int, token: int) -> None:
        self._steps.run.stamps[what].append((request_id, token, time.monotonic()))

    def _next_step(self, *_: Any) -> None:
        if self._streams:
            self._steps.end()

    def _parsed(self, message: Any, *_: Any) -> None:
        from scheduler.shared.messages import StepOutput

        if isinstance(message, StepOutput):
            for token in message.tokens:
                self._tokens[token.request_id] += 1
                self._stamp("parsed", token.request_id, self._tokens[token.request_id])
            if not (message.prefills or message.retired):
                self._steps.rows = len({token.request_id for token in message.tokens})

    def _written(self, *_: Any) -> None:
        if (sending := _sending.get()) is not None:
            self._stamp("written", *sending)
