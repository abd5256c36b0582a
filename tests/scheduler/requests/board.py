"""A multiplexer with all that it sends and loses, and the engine's messages to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.engines.multiplexer import Multiplexer
from scheduler.requests.answer_reading import AnswerReading
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import ENDING, Requests
from scheduler.shared.framing import encode
from scheduler.shared.messages import (
    Counters,
    PrefillOut,
    Retired,
    RetireReason,
    StepOutput,
    ToEngine,
    TokenOut,
)
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from scheduler.telemetry.observation import RequestSamples
from tests.fakes.samples import sample
from tests.fakes.scheduling import in_place


@dataclass
class Board:
    """A multiplexer, the messages that it sent and the records that left it. `now` is its clock."""

    sent: list[ToEngine] = field(default_factory=list)
    left: list[StreamRecord] = field(default_factory=list)
    metrics: ModelMetrics = field(default_factory=lambda: Metrics().of_model("tiny"))
    now: float = 0.0
    requests: Requests = field(default_factory=Requests)
    multiplexer: Multiplexer = field(init=False)
    reading: AnswerReading = field(init=False)

    def __post_init__(self) -> None:
        self.reading = AnswerReading(in_place, self.requests, self.reconcile)
        self.multiplexer = Multiplexer(
            "0",
            self.requests,
            self._send,
            RequestSamples(self.metrics),
            self.reading,
            lambda: self.now,
        )

    def _send(self, message: ToEngine) -> None:
        encode(message)  # As the link does, with all that it raises.
        self.sent.append(message)

    def reconcile(self) -> None:
        """As the pool does."""
        while self.requests.cancelling:
            if (record := self.requests.cancelling.popleft()).state is State.CANCELLING:
                self.multiplexer.cancel(record)
        while self.requests.retired:
            record, place = self.requests.retired.popleft()
            if place == ENDING:
                record.forget_unread()
            self.left.append(record)

    def submit(self, record: StreamRecord) -> StreamRecord:
        self.requests.accept(record)
        self.multiplexer.take(record)
        return record

    def route(self, output: StepOutput) -> list[StreamRecord]:
        advanced = self.multiplexer.route(output)
        self.reconcile()
        return advanced

    def lose_all(self) -> None:
        """The engine dies."""
        self.multiplexer.lose_all()
        self.reconcile()

    @property
    def on_board(self) -> list[StreamRecord]:
        return list(self.requests.at("0").values())

    @property
    def ending(self) -> list[StreamRecord]:
        return list(self.requests.at(ENDING).values())

    def sample(self, name: str, **labels: str) -> float:
        return sample(self.metrics.registry, name, **labels)


def step(
    tokens: Sequence[tuple[int, int]] = (),
    prefills: Sequence[tuple[int, int, int]] = (),
    retired: Sequence[tuple[int, RetireReason]] = (),
    detail: str = "",
) -> StepOutput:
    return StepOutput(
        [TokenOut(*token) for token in tokens],
        [PrefillOut(*prefill) for prefill in prefills],
        [Retired(request_id, reason, detail) for request_id, reason in retired],
        Counters(),
    )
