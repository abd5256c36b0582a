"""A multiplexer with all that it sends and loses, and the engine's messages to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.requests.answer_reading import AnswerReading
from scheduler.requests.awaiting import Awaiting
from scheduler.requests.lifecycle import Event, State
from scheduler.requests.multiplexer import Multiplexer
from scheduler.requests.record import StreamRecord
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
    multiplexer: Multiplexer = field(init=False)
    awaiting: Awaiting = field(init=False)
    reading: AnswerReading = field(init=False)

    def __post_init__(self) -> None:
        self.awaiting = Awaiting(self.left.append)
        self.reading = AnswerReading(in_place, self._cancel, self._retire)
        self.multiplexer = Multiplexer(
            "0",
            self._send,
            self.left.append,
            lambda record: None,
            RequestSamples(self.metrics),
            self.reading,
            lambda: self.now,
        )

    def _send(self, message: ToEngine) -> None:
        encode(message)  # As the link does, with all that it raises.
        self.sent.append(message)

    def _cancel(self, record: StreamRecord) -> None:
        """As the pool does."""
        if record.state is State.ENDING:
            self.reading.drop(record)
        elif record in self.awaiting:
            self.awaiting.cancel(record)
        else:
            self.multiplexer.cancel(record)

    def _retire(self, record: StreamRecord) -> None:
        """As the pool does."""
        record.move(Event.RETIRE)
        self.left.append(record)

    def submit(self, record: StreamRecord) -> StreamRecord:
        self.multiplexer.submit(record)
        return record

    def lose_all(self) -> None:
        """The engine dies, and the pool keeps what it had."""
        self.awaiting.add(self.multiplexer.lose_all())

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


def letters(request_id: int, text: str) -> list[StepOutput]:
    """One step a byte."""
    return [step(tokens=[(request_id, byte)]) for byte in text.encode()]
