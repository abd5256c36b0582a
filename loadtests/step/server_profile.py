"""The server's part: `hooks/sitecustomize.py` installs it before the server is imported."""

from __future__ import annotations

import socket
import sys
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from loadtests.step import record
from loadtests.step.counts import Calls, start_counting, usage
from loadtests.step.parts import Parts, replace
from loadtests.step.record import Run, Step

_sending: ContextVar[tuple[int, int] | None] = ContextVar("sending", default=None)
"""The request whose stream this task writes, and how many of its tokens have come."""


class ServerProfile:
    """Times and counts of what the event loop does for each step. A run begins with the first stream, and is
    written when the last one has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = Run()
        self._step = Step()
        self._frames = self._streams = 0
        self._counting = False
        self._calls: Calls | None = None
        self._used = usage()
        self._parts = Parts()
        # trio takes the method when it is imported. What it returns from is written: the task that sent goes
        # on later.
        self._wrap_send()
        self._wrap()

    def _wrap_send(self) -> None:
        self._parts.measure(socket.socket, "send", "write")
        whole, profile = socket.socket.send, self

        def send(own: socket.socket, *args: Any) -> int:
            sent = whole(own, *args)
            if (sending := _sending.get()) is not None:
                profile._run.written.append((*sending, time.monotonic()))
            return sent

        replace(socket.socket, "send", send)

    def _wrap(self) -> None:
        from api.answers.event_stream import EventStream
        from scheduler.answer import detokenizer
        from scheduler.engines.engine import Engine
        from scheduler.requests.multiplexer import Multiplexer
        from scheduler.shared.framing import FrameReader

        for owner, name, part in (
            (FrameReader, "_decode", "parse"),
            (Engine, "step", "account"),
            (Multiplexer, "route", "route"),
            (detokenizer.ByteLevelDetokenizer, "feed", "detokenize"),
            (detokenizer.PieceDetokenizer, "feed", "detokenize"),
            (detokenizer.WindowDetokenizer, "feed", "detokenize"),
            (EventStream, "_encode", "encode"),
        ):
            self._parts.measure(owner, name, part)
        self._wrap_texts()
        self._wrap_stream()
        self._wrap_frames()

    def _wrap_texts(self) -> None:
        """A token in the middle of a character gives no text: nothing is written for it."""
        from scheduler.requests.record import StreamRecord

        whole, profile = StreamRecord.put, self

        def put(own: StreamRecord, piece: Any) -> None:
            profile._run.texts.append((own.request_id, own.output_tokens))
            whole(own, piece)

        replace(StreamRecord, "put", put)

    def _wrap_stream(self) -> None:
        from api.answers.event_stream import EventStream

        stream_next, whole_stream, profile = EventStream._next, EventStream.__call__, self

        async def following(own: EventStream, stream: Any) -> Any:
            choice, event = await stream_next(own, stream)
            one = stream._records[choice]
            _sending.set((one.request_id, one.output_tokens))
            return choice, event

        async def streaming(own: EventStream, *args: Any) -> None:
            if not profile._streams:
                profile._run, profile._counting = Run(), record.is_counting(profile._folder)
            profile._streams += 1
            try:
                await whole_stream(own, *args)
            finally:
                _sending.set(None)
                profile._streams -= 1
                profile._run.ended += 1
                if not profile._streams:
                    sys.setprofile(None)
                    record.append(profile._folder / record.SERVER, profile._run)

        replace(EventStream, "_next", following)
        replace(EventStream, "__call__", streaming)

    def _wrap_frames(self) -> None:
        from scheduler.shared.framing import FrameReader
        from scheduler.shared.messages import StepOutput

        whole, profile = FrameReader._decode, self

        def decode(own: FrameReader[Any], body: bytes) -> Any:
            profile._next_step()
            message = whole(own, body)
            if isinstance(message, StepOutput):
                profile._run.frames.append((profile._frames, time.monotonic()))
                profile._frames += 1
                alone = not (message.prefills or message.retired)
                profile._step.rows = len({token.request_id for token in message.tokens}) if alone else 0
            return message

        replace(FrameReader, "_decode", decode)

    def _next_step(self) -> None:
        """A step begins where its frame is read, and ends where the next one is."""
        sys.setprofile(None)
        step, used = self._step, usage()
        step.times = self._parts.end_step()
        step.faults, step.waits, step.lost_cores = (
            now - was for now, was in zip(used, self._used, strict=True)
        )
        if self._calls is not None:
            step.other_calls = self._calls.others
        if self._streams:
            self._run.steps.append(step)
        self._step, self._calls = Step(), None
        if self._counting and self._streams:
            self._calls = Calls()
            start_counting(self._calls, lambda code: False)
        self._used = usage()
