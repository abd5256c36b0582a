"""Requests go to the engine as soon as it has room, and never before."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler.intake.dispatcher import Dispatcher

from scheduler.config import IntakeConfig
from scheduler.intake.queue import IntakeQueue
from scheduler.link.messages import Counters, Retired, StepOutput, Submit, ToEngine
from scheduler.requests.lifecycle import State
from scheduler.requests.multiplexer import Multiplexer
from scheduler.requests.record import StreamRecord
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.observation import RequestSamples
from tests.scheduler.requests.records import make_record


class DispatcherMachine(RuleBasedStateMachine):
    """Arrivals, retirements, cancels and engine deaths; `pump` after each, as the service does."""

    @initialize(credits=st.integers(1, 6))
    def begin(self, credits: int) -> None:
        self.credits = credits
        self.sent: list[ToEngine] = []
        self.submitted: list[StreamRecord] = []
        self.ids = count(1)
        self.queue = IntakeQueue(IntakeConfig(max_queue=10**6))
        self.multiplexer = Multiplexer(
            self.sent.append, lambda record: None, RequestSamples(Metrics()), lambda: 0.0
        )
        self.dispatcher = Dispatcher(self.queue, self.multiplexer, credits)

    @rule(requests=st.integers(1, 5))
    def arrive(self, requests: int) -> None:
        for _ in range(requests):
            self.queue.push(make_record(next(self.ids)), 0.0)
        self.submitted += self.dispatcher.pump(0.0)

    @rule()
    def engine_ready(self) -> None:
        self.dispatcher.engine_ready = True
        self.submitted += self.dispatcher.pump(0.0)

    @rule()
    def engine_dies(self) -> None:
        self.dispatcher.engine_ready = False
        self.multiplexer.lose_all()
        self.submitted += self.dispatcher.pump(0.0)

    @precondition(lambda self: bool(self.on_board()))
    @rule(which=st.integers(0, 10))
    def retire(self, which: int) -> None:
        record = self.on_board()[which % len(self.on_board())]
        self.multiplexer.route(StepOutput([], [], [Retired(record.request_id, "length")], Counters()))
        self.submitted += self.dispatcher.pump(0.0)

    @precondition(lambda self: bool(len(self.multiplexer)))
    @rule(which=st.integers(0, 10))
    def cancel_in_engine(self, which: int) -> None:
        self.multiplexer.cancel(list(self.multiplexer)[which % len(self.multiplexer)])
        self.submitted += self.dispatcher.pump(0.0)

    @invariant()
    def credits_are_never_exceeded(self) -> None:
        assert len(self.multiplexer) <= self.credits

    def on_board(self) -> list[StreamRecord]:
        return [record for record in self.multiplexer if record.state is not State.AWAITING_ENGINE]

    @invariant()
    def nothing_waits_while_there_is_room(self) -> None:
        if self.dispatcher.engine_ready and len(self.queue) and not self.multiplexer.awaiting_engine:
            assert len(self.multiplexer) == self.credits

    @invariant()
    def what_was_left_over_goes_first_and_alone(self) -> None:
        if self.dispatcher.engine_ready and self.multiplexer.awaiting_engine:
            assert self.on_board()

    @invariant()
    def a_dead_engine_is_given_nothing(self) -> None:
        assert self.dispatcher.engine_ready or not self.on_board()

    @invariant()
    def equals_are_served_in_the_order_of_arrival(self) -> None:
        sent = [message.request_id for message in self.sent if isinstance(message, Submit)]
        submitted = list(dict.fromkeys(sent))
        assert submitted == list(range(1, len(submitted) + 1))
        assert submitted == [record.request_id for record in self.submitted]

    @invariant()
    def it_says_whether_there_is_room(self) -> None:
        room = self.dispatcher.engine_ready and len(self.multiplexer) < self.credits
        assert self.dispatcher.has_room == (room and not self.multiplexer.awaiting_engine)


TestDispatcher = DispatcherMachine.TestCase
TestDispatcher.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
