"""Replays the log of a server's core (`loadtests/chaos/core_log`): the same events at the same times, in one
process without engines, and each must have the same effects.

`python -m tests.scheduler.engines.replay bench/core.log` replays that of a chaos run.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import assert_never

from loadtests.chaos.core_log.lines import (
    ALL,
    Asked,
    AskedRequest,
    BeganLife,
    BeganWork,
    CarriedOut,
    Closed,
    Configured,
    Died,
    Event,
    Expired,
    Left,
    Line,
    Lost,
    Outside,
    ReadElsewhere,
    ReadPart,
    ReadSlice,
    Stepped,
    read_log,
)
from loadtests.chaos.core_log.recording import Recording
from scheduler.answer.assembly import HEAVY, Heavy
from scheduler.answer.pipeline import AnswerPipeline
from scheduler.engines.engine import Engine
from scheduler.errors import DeadlineExceeded, Draining, InvalidRequest, RequestFailed
from scheduler.events import AnswerPiece, FinishReason, ToolCallStarted
from scheduler.prompt.preparation import Prepared
from scheduler.request import GenerationRequest, TokenPrompt
from scheduler.requests.answer_reading import _rest
from scheduler.requests.lifecycle import State
from scheduler.requests.record import Part, StreamRecord
from scheduler.shared.messages import Submit, ToEngine
from tests.scheduler.engines.bench import PoolBench
from tests.scheduler.engines.core_rules import nobody_waits_beside_room

PLAIN = ReadPart(0, 0, False, (), False, None, "")


class Different(AssertionError):
    """The core does now what it did not do when the log was written."""


class BrokenRule(AssertionError):
    """A rule of the core does not hold after an event."""


class WrittenAnswer(AnswerPipeline):
    """Says what reading the answer showed when the log was written, and has no text."""

    def __init__(self) -> None:
        self.prompt = None
        self.now = PLAIN

    stopped = property(lambda self: self.now.stopped)
    stop_string = property(lambda self: None)
    malformed_calls = property(lambda self: 0)
    reasoning_tokens = property(lambda self: 0)

    def finish_reason(self, by_engine: FinishReason) -> FinishReason:
        return self.now.reason or by_engine


@dataclass(slots=True)
class ReplayedRecord(StreamRecord):
    reads: Mapping[int, ReadPart] = field(default_factory=dict)
    """By part, where one showed more than text."""
    parts: int = 0

    def read(self, part: Part) -> Iterator[AnswerPiece | Heavy]:
        self.parts += 1
        return self._read(self.reads.get(self.parts, PLAIN))

    def _read(self, shown: ReadPart) -> Iterator[AnswerPiece | Heavy]:
        if shown.heavy:
            yield HEAVY
        for place, name in enumerate(shown.called):
            yield ToolCallStarted(place, name, name)
        if shown.failed:
            error = InvalidRequest if shown.failed == "invalid" else RequestFailed
            raise error("as when the log was written")
        assert isinstance(self.pipeline, WrittenAnswer)
        self.pipeline.now = shown


class _Threads:
    """Takes the place of the reading's nursery: what a worker thread is to read waits for its event."""

    def __init__(self) -> None:
        self.readings: dict[int, Iterator[AnswerPiece | Heavy]] = {}

    def start_soon(
        self,
        task: Callable[..., Awaitable[None]],
        record: StreamRecord,
        reading: Iterator[AnswerPiece | Heavy],
    ) -> None:
        self.readings[record.request_id] = reading


class Replay:
    """Raise Different or BrokenRule from `play`."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = list(lines)
        first = self._lines[0].event
        assert isinstance(first, Configured), "a log begins with the configuration"
        self._reads: dict[int, dict[int, ReadPart]] = {}
        for line in self._lines:
            for shown in line.reads:
                self._reads.setdefault(shown.request, {})[shown.part] = shown
        self._config = first.config
        self._tokens: dict[int, list[int]] = {}
        """What engines have sent of each answer."""
        self._line = self._lines[0]
        self._doubled: list[int] = []
        """Requests that went on behind other tokens than engines had sent of them."""
        self._late = 0.0
        self._written: list[Line] = []

    def play(self) -> PoolBench:
        """Replay all events. Return the pool as they leave it."""
        recording = Recording(self._written.append, lambda: self._line.at)
        recording.install()
        try:
            bench = self._bench = PoolBench(self._config.engines, config=self._config)
            reading = bench.pool.reading
            self._threads = _Threads()
            reading._nursery = self._threads  # type: ignore[assignment]
            reading._clock = partial(self._look, recording)
            for number, line in enumerate(self._lines[1:], 1):
                self._line, bench.now = line, line.at
                with suppress(Exception), recording.event(line.event):
                    self._happens(line.event)
                effects = self._written.pop().effects
                if effects != line.effects:
                    raise Different(_difference(number, line, effects))
                self._check(number)
            if any(isinstance(line.event, Closed) for line in self._lines):
                self._check_end()
            return bench
        finally:
            recording.remove()

    def _look(self, recording: Recording) -> float:
        """Look at the clock of the reading's budget, as often in time as when the log was written."""
        recording.looks += 1
        if self._line.in_time == ALL or recording.looks <= self._line.in_time:
            return 0.0
        self._late += 1.0
        return self._late

    def _happens(self, event: Event) -> None:
        bench, pool = self._bench, self._bench.pool
        match event:
            case Asked(requests):
                bench.accept(*map(self._record, requests))
            case Left(request):
                if (record := self._of(request)) is not None:
                    record.abandon()
                    pool.effects.cancel(record)
            case Expired(request):
                pool.effects.expire(
                    bench.accepted[request - 1], DeadlineExceeded("as when the log was written")
                )
            case BeganLife(_, _, ready):
                engine = self._engine(event)
                engine.begin_life(ready, partial(self._sent, engine))
            case BeganWork(engine=name, begun=begun):
                bench.engine(name).began(begun)
            case Stepped(engine=name, output=output):
                for token in output.tokens:
                    self._tokens.setdefault(token.request_id, []).append(token.token)
                bench.engine(name).step(output)
            case Lost(_, _, cause):
                self._engine(event).lost(cause)
            case Died(_, _, death):
                self._engine(event).died(death)
            case ReadSlice():
                pool.reading.read_slice()
            case ReadElsewhere(request):
                record = bench.accepted[request - 1]
                pieces, error = _rest(self._threads.readings.pop(request))
                pool.reading.read_elsewhere(record, pieces, error)
            case CarriedOut(held):
                pool.dispatcher.held = held
                pool.effects.carry_out()
            case Closed():
                bench.admission.close()
                pool.effects.end_all(Draining("as when the log was written"))
            case Configured() | Outside():
                raise AssertionError("this is no event of the core")
            case _:
                assert_never(event)

    def _engine(self, event: BeganLife | Lost | Died) -> Engine:
        engine, known = self._bench.engine(event.engine), event.supervision
        supervisor = engine.supervisor
        supervisor.state = known.state
        supervisor.failed_starts, supervisor.death_cause = known.failed_starts, known.death_cause
        return engine

    def _of(self, request: int) -> StreamRecord | None:
        """Return it; None for one that was never accepted."""
        accepted = self._bench.accepted
        return accepted[request - 1] if request <= len(accepted) else None

    def _record(self, asked: AskedRequest) -> ReplayedRecord:
        request = GenerationRequest(
            public_id=str(asked.submit.request_id),
            prompt=TokenPrompt(()),
            sampling=asked.submit.sampling,
            max_tokens=0 if asked.only_prompt else None,
            tenant=asked.tenant,
            session=asked.session,
            priority=asked.priority,
            timeout_seconds=asked.timeout_seconds,
        )
        pipeline = WrittenAnswer()
        prepared = Prepared(
            request, asked.submit, lambda: [pipeline], asked.prefix_blocks, repetition=asked.repetition
        )
        reads = self._reads.get(asked.submit.request_id, {})
        return ReplayedRecord(prepared, asked.submit, pipeline, asked.arrived_at, reads=reads)

    def _sent(self, engine: Engine, message: ToEngine) -> None:
        match message:
            case Submit(request_id=request, done_tokens=done) if done:
                if list(message.prompt[-done:]) != self._tokens[request]:
                    self._doubled.append(request)
            case _:
                pass

    def _check(self, number: int) -> None:
        bench = self._bench
        try:
            nobody_waits_beside_room(bench.pool, bench.queue)
        except AssertionError as broken:
            raise BrokenRule(f"event {number}: {broken}") from broken
        if self._doubled:
            raise BrokenRule(f"event {number}: requests {self._doubled} go on behind other tokens than sent")

    def _check_end(self) -> None:
        """Each has had its final event, or has left, and only engines hold any."""
        bench = self._bench
        if lost := [one.request_id for one in bench.accepted if one.outcome is None]:
            raise BrokenRule(f"requests {lost} never end")
        held = [one.request_id for one in bench.requests if one.state is not State.CANCELLING]
        if held or bench.queue.open_charges != len(bench.requests) or len(bench.expiry):
            raise BrokenRule(
                f"at the end {held} are held, {bench.queue.open_charges} charges, {len(bench.expiry)} timers"
            )


def _difference(number: int, line: Line, effects: tuple[str, ...]) -> str:
    kind, name = type(line.event).__name__, getattr(line.event, "engine", "")
    was, now = ("\n  ".join(them) or "nothing" for them in (line.effects, effects))
    return f"event {number}, {kind} {name} at {line.at:.3f}\nwas:\n  {was}\nis:\n  {now}"


if __name__ == "__main__":
    bench = Replay(read_log(Path(sys.argv[1]))).play()
    resumed = sum(one.resumed for one in bench.accepted)
    print(f"{len(bench.accepted)} requests, {resumed} resumed: each event has its effects again")
