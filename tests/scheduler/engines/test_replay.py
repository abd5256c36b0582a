"""A log of the core's events has all that its decisions depend on: replayed, each event has the same effects,
and a fault in the core shows at the event at which it happens."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from loadtests.chaos.core_log.lines import Line, Lost, ReadElsewhere, ReadSlice, read_log
from loadtests.chaos.core_log.recording import Recording
from scheduler.answer.assembly import HEAVY, Heavy
from scheduler.answer.pipeline import AnswerPipeline
from scheduler.engines.dispatcher import Dispatcher
from scheduler.errors import SchedulerError
from scheduler.events import AnswerPiece, Failed, Finished
from scheduler.intake.queue import IntakeQueue
from scheduler.requests import answer_reading
from scheduler.requests.lifecycle import Event
from scheduler.requests.multiplexer import Multiplexer
from scheduler.requests.record import StreamRecord
from scheduler.requests.stream import RequestStream
from scheduler.requests.table import Requests
from scheduler.shared.framing import encode
from scheduler.shared.messages import LogprobsOut, ScriptedPlan, Submit
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import ask, make_scheduler, running
from tests.scheduler.engines.replay import BrokenRule, Different, Replay

Fault = Callable[[pytest.MonkeyPatch], None]
ENGINES = 3
REQUESTS = 120
DEATHS = 8


async def chaos(seed: int) -> None:
    """Requests of several tenants and sessions; some leave, some have a timeout, a stop string, several
    choices; and engines are killed."""
    chance = Random(seed)
    launchers = [LoopbackLauncher() for _ in range(ENGINES)]
    scheduler = make_scheduler(
        launchers.__getitem__, ScriptedPlan(step_seconds=0.02), engines=ENGINES, max_slots=3, lookahead=1
    )

    async def ask_one(number: int) -> None:
        await trio.sleep(chance.uniform(0, 6))
        request = ask(
            f"{number % 7} " * chance.randrange(1, 200),
            max_tokens=chance.choice((1, 8, 60)),
            stop=chance.choice(((), (), ("42",), ("7 w",))),
            tenant=chance.choice("ab"),
            session=chance.choice((None, "s", "t")),
            priority=chance.choice((0, 0, 1)),
            timeout_seconds=chance.choice((None, None, 0.5)),
            choices=chance.choice((1, 1, 3)),
        )
        patience = chance.choice((60.0, 60.0, 0.3))
        with trio.move_on_after(patience):
            try:
                async with scheduler.stream(request) as stream:
                    for _ in range(request.choices):
                        await ends(stream)
            except SchedulerError:
                pass

    async def kill() -> None:
        for _ in range(DEATHS):
            await trio.sleep(chance.uniform(0.2, 1))
            chance.choice(launchers).kill()

    async with running(scheduler), trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        for number in range(REQUESTS):
            nursery.start_soon(ask_one, number)


async def ends(stream: RequestStream) -> None:
    """Read until the end of one of its choices."""
    while not isinstance((await stream.receive_choice())[1], Finished | Failed):
        pass


def recorded(seed: int) -> list[Line]:
    lines: list[Line] = []
    recording = Recording(lines.append, trio.current_time)
    recording.install()
    try:
        trio.run(chaos, seed, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        recording.remove()
    return lines


def read_late(patch: pytest.MonkeyPatch) -> None:
    """Let each step have time to read one part, and every seventh be read in a worker thread."""
    whole, parts = AnswerPipeline.read, count()
    ticks = count(step=0.8 * answer_reading.STEP_SECONDS)

    def read(
        pipeline: AnswerPipeline, token_ids: Sequence[int], logprobs: Sequence[LogprobsOut] = ()
    ) -> Iterator[AnswerPiece | Heavy]:
        if next(parts) % 7 == 0:
            yield HEAVY
        yield from whole(pipeline, token_ids, logprobs)

    patch.setattr(AnswerPipeline, "read", read)
    patch.setattr(answer_reading.AnswerReading.__init__, "__defaults__", (lambda: next(ticks),))


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    with pytest.MonkeyPatch.context() as patch:
        read_late(patch)
        return recorded(1)


def test_each_event_has_its_effects_again(lines: list[Line]) -> None:
    bench = Replay(lines).play()
    assert len(bench.accepted) >= REQUESTS
    kinds = Counter(type(line.event) for line in lines)
    assert kinds[Lost] >= DEATHS
    assert kinds[ReadSlice]
    assert kinds[ReadElsewhere]
    assert any(one.resumed for one in bench.accepted)
    outcomes = {one.outcome for one in bench.accepted}
    assert {"stop", "length", "cancelled", "deadline"} <= outcomes


def test_what_was_read_in_its_step_is_read_so_again() -> None:
    Replay(recorded(2)).play()


# --- faults of the core


def _drops_a_cancel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Multiplexer, "cancel", lambda multiplexer, record: None)


def _doubles_a_cancel(patch: pytest.MonkeyPatch) -> None:
    whole = Multiplexer.cancel

    def cancel(multiplexer: Multiplexer, record: StreamRecord) -> None:
        whole(multiplexer, record)
        whole(multiplexer, record)

    patch.setattr(Multiplexer, "cancel", cancel)


def _resumes_in_another_order(patch: pytest.MonkeyPatch) -> None:
    whole = Dispatcher.awaiting
    patch.setattr(Dispatcher, "awaiting", lambda self, *, suspect: whole(self, suspect=suspect)[::-1])


def _keeps_a_charge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IntakeQueue, "charge_actual", lambda queue, record, now: None)


@pytest.mark.parametrize(
    "fault", [_drops_a_cancel, _doubles_a_cancel, _resumes_in_another_order, _keeps_a_charge]
)
def test_another_effect_is_found_at_its_event(
    lines: list[Line], fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(Different):
        Replay(lines).play()


def _loses_one_at_a_death(patch: pytest.MonkeyPatch) -> None:
    whole = Requests.move

    def move(requests: Requests, record: StreamRecord, event: Event, *more: Any) -> None:
        if event is not Event.LOSE or record.request_id % 3:
            whole(requests, record, event, *more)

    patch.setattr(Requests, "move", move)


def _sends_nothing_where_a_slot_is_free(patch: pytest.MonkeyPatch) -> None:
    whole, calls = Dispatcher.pump, count()
    patch.setattr(Dispatcher, "pump", lambda self, now: [] if next(calls) % 3 == 0 else whole(self, now))


def _doubles_a_token(patch: pytest.MonkeyPatch) -> None:
    whole = StreamRecord.resubmit_message

    def message(record: StreamRecord) -> Submit:
        record.emitted = record.emitted[:-1]
        return whole(record)

    patch.setattr(StreamRecord, "resubmit_message", message)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (_loses_one_at_a_death, "an engine has requests and no process"),
        (_sends_nothing_where_a_slot_is_free, "requests wait, and an engine has room"),
        (_doubles_a_token, "go on behind other tokens than sent"),
    ],
)
def test_a_lost_late_or_doubled_request_is_found_in_the_log_of_its_run(
    fault: Fault, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded with the fault, so that each effect is the same."""
    fault(monkeypatch)
    lines = recorded(3)
    monkeypatch.undo()
    fault(monkeypatch)
    with pytest.raises(BrokenRule, match=found):
        Replay(lines).play()


def test_a_log_comes_back_from_its_file_up_to_where_it_was_cut(lines: list[Line], tmp_path: Path) -> None:
    path = tmp_path / "core.log"
    with gzip.open(path, "wb") as file:
        for line in lines:
            file.write(encode(line))
    assert list(read_log(path)) == lines
    path.write_bytes(path.read_bytes()[:-2000])
    cut = list(read_log(path))
    assert lines[:10] == cut[:10]
    assert len(cut) < len(lines)
    Replay(cut).play()
