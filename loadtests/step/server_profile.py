"""The server's part: `hooks/sitecustomize.py` installs it before the server is imported."""

from __future__ import annotations

import socket
from typing import Any

from loadtests.step.steps import Report, Steps, around, replace


class ServerProfile:
    """A run begins with the first stream, and is sent when the last one has ended."""

    def __init__(self) -> None:
        self._report = Report("server")
        self._steps = Steps()
        self._streams = 0
        # trio takes the method when it is imported.
        self._steps.parts.measure(socket.socket, "send", "write")
        self._wrap()

    def _wrap(self) -> None:
        from api.answers.event_stream import EventStream
        from scheduler.answer.detokenizer import Detokenizer
        from scheduler.engines.engine import Engine
        from scheduler.engines.multiplexer import Multiplexer
        from scheduler.shared.framing import FrameReader

        for owner, name, part in (
            (FrameReader, "_decode", "parse"),
            (Engine, "step", "account"),
            (Multiplexer, "route", "route"),
            (Detokenizer, "feed", "detokenize"),
            (EventStream, "_encode", "encode"),
        ):
            self._steps.parts.measure(owner, name, part)
        # A step begins where its frame is read, and ends where the next one is.
        around(FrameReader, "_decode", before=self._next_step, after=self._parsed)
        whole_stream = EventStream.__call__

        async def streaming(own: EventStream, *args: Any) -> None:
            if not self._streams:
                self._steps.begin(self._report.is_counting())
            self._streams += 1
            try:
                await whole_stream(own, *args)
            finally:
                self._streams -= 1
                self._steps.run.ended += 1
                if not self._streams:
                    self._steps.rest()
                    self._report.send(self._steps.run)

        replace(EventStream, "__call__", streaming)

    def _next_step(self, *_: Any) -> None:
        if self._streams:
            self._steps.end()

    def _parsed(self, message: Any, *_: Any) -> None:
        from scheduler.shared.messages import StepOutput

        if isinstance(message, StepOutput) and not (message.prefills or message.retired):
            self._steps.rows = len({token.request_id for token in message.tokens})
