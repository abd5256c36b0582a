"""A pool whose engines exist only as messages: tests say what they report, and see what they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from scheduler.config import EngineConfig, IntakeConfig, SchedulerConfig
from scheduler.engines.boundary import EngineProvision
from scheduler.engines.death import Death
from scheduler.engines.engine import Engine
from scheduler.engines.pool import Pool
from scheduler.errors import DeadlineExceeded, LinkError
from scheduler.processes.process import Exit, Session
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import AWAITING
from scheduler.shared.framing import encode
from scheduler.shared.messages import (
    Begun,
    Counters,
    Ready,
    Retired,
    RetireReason,
    StepOutput,
    Submit,
    ToEngine,
    TokenOut,
)
from scheduler.statistics import DeathCause
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from scheduler.telemetry.request_recorder import RequestRecorder
from tests.fakes.scheduling import in_place
from tests.scheduler.requests.records import make_record

NO_FOLDER = Path("none")
READY = Ready(1, "cpu", "test", 8192, 64, 0, "float32")
TRUSTED_TOKENS = 4


class NoLauncher:
    async def run(self, session: Session) -> Exit:
        raise NotImplementedError  # The pool's tasks do not run.


class Kept(RequestRecorder):
    """Records those that left in a list."""

    def __init__(self, metrics: ModelMetrics, left: list[StreamRecord]) -> None:
        super().__init__(metrics)
        self._left = left

    def ended(self, record: StreamRecord, now: float) -> None:
        assert record.state is State.RETIRED
        self._left.append(record)


class PoolBench:
    """`sent` has each engine's messages by its name, `retired_records` those that left, `submitted` those
    that engines got, in order."""

    def __init__(
        self,
        engines: int,
        *,
        slots: int = 2,
        lookahead: int = 0,
        model_folder: Path = NO_FOLDER,
        model: str = "",
        config: SchedulerConfig | None = None,
    ) -> None:
        """`config`: another one than the other arguments describe."""
        self.now = 0.0
        config = config or SchedulerConfig(
            EngineConfig("scripted", str(model_folder), max_slots=slots, model=model),
            intake=IntakeConfig(max_queue=10**6, lookahead=lookahead),
            engines=engines,
        )
        # The pool's tasks do not run.
        config = replace(config, load_at_start=False)
        self.metrics = Metrics().of_model("tiny")
        self.accepted: list[StreamRecord] = []
        self.retired_records: list[StreamRecord] = []
        self.submitted: list[StreamRecord] = []
        self.uncharged = 0
        """Requests that had left and were not seen to when a new one was chosen."""
        self.sent: dict[str, list[ToEngine]] = {}
        self._began: dict[str, int] = {}
        """How much each engine had been sent when its last process began."""
        self.unsendable: set[int] = set()
        """Ids of requests that no link carries from now on."""
        self._ids = count(1)
        self.pool = Pool(
            config,
            EngineProvision(lambda number: NoLauncher()),
            Kept(self.metrics, self.retired_records),
            in_place,
            lambda: None,
            clock=lambda: self.now,
        )
        self.requests, self.queue = self.pool.requests, self.pool.queue
        self.admission, self.expiry = self.pool.admission, self.pool.expiry

    # --- what clients do

    def arrive(
        self,
        session: str | None = None,
        prompt: list[int] | None = None,
        timeout_seconds: float | None = None,
    ) -> StreamRecord:
        record = make_record(
            next(self._ids),
            session=session,
            prompt=prompt,
            stop=("!",),
            max_tokens=1000,
            arrived_at=self.now,
            timeout_seconds=timeout_seconds,
        )
        self.accept(record)
        return record

    def accept(self, *records: StreamRecord) -> None:
        """Take them in, as the service does."""
        self.accepted += records
        self.pool.accept(records)

    def cancel(self, record: StreamRecord) -> None:
        record.abandon()
        self.pool.cancel(record)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for record, _ in self.expiry.take_expired(self.now):
            self.pool.expire(record, DeadlineExceeded("too late"))

    def read_late(self) -> None:
        """Let nothing be read in its own step from now on, as in steps whose budget is spent."""
        ticks = count()
        self.pool.reading._clock = lambda: float(next(ticks))
        self.pool.reading._nursery = object()  # type: ignore[assignment]

    def read_on(self, parts: int) -> None:
        """A slice of what was left."""
        reading = self.pool.reading
        for _ in range(parts):
            if reading._waiting:
                reading._read_next()
        self.pool.stepped()

    # --- what engines do

    def engine(self, name: str | int) -> Engine:
        return self.pool[str(name)]

    def ready(self, *names: str | int) -> None:
        for name in names:
            self._began[str(name)] = len(self.sent.setdefault(str(name), []))
            self.engine(name).process_ready(READY, partial(self._send, str(name)))

    def _send(self, name: str, message: ToEngine) -> None:
        if isinstance(message, Submit) and message.request_id in self.unsendable:
            raise LinkError("the message is too long")
        encode(message)  # As the link does, with all that it raises.
        self.sent[name].append(message)
        if isinstance(message, Submit):
            record = self.accepted[message.request_id - 1]
            if not record.resumed:
                self.submitted.append(record)
                self.uncharged += len(self.requests.retired)

    def step(
        self, name: str | int, retired: Sequence[StreamRecord] = (), reason: RetireReason = "length"
    ) -> None:
        """A token for each request that is not retired."""
        self.compute(name, self.on_board(name), retired, reason)

    def compute(
        self,
        name: str | int,
        rows: Sequence[StreamRecord],
        retired: Sequence[StreamRecord] = (),
        reason: RetireReason = "length",
        token: int = 65,
    ) -> None:
        """A step of these rows, of which some are retired."""
        tokens = [TokenOut(record.request_id, token) for record in rows if record not in retired]
        ended = [Retired(record.request_id, reason) for record in retired]
        self.engine(name).step(StepOutput(tokens, [], ended, Counters()))

    def trust(self, name: str | int) -> None:
        for _ in range(TRUSTED_TOKENS):
            self.step(name)

    def die(
        self,
        name: str | int,
        cause: DeathCause = DeathCause.CRASHED,
        in_step: Sequence[StreamRecord] | None = None,
    ) -> None:
        """`in_step`: what the engine computes when it dies; None for all that it has."""
        # One that drains may leave the pool with the requests that it loses, before the cause is known.
        engine = self.engine(name)
        if engine.ready:
            rows = self.on_board(name) if in_step is None else in_step
            engine.began(Begun("prefill", tuple(one.request_id for one in rows)))
        engine.lost("it died")
        engine.died(Death(cause))

    def on_board(self, name: str | int) -> list[StreamRecord]:
        return list(self.engine(name).on_board.values())

    @property
    def awaiting(self) -> list[StreamRecord]:
        return list(self.requests.at(AWAITING).values())

    def sent_by_life(self, name: str) -> list[ToEngine]:
        """What its last process was sent."""
        return self.sent.get(name, [])[self._began.get(name, 0) :]

    def submits(self, name: str | int) -> list[int]:
        """Ids of the requests that an engine was sent, in order."""
        return [one.request_id for one in self.sent.get(str(name), []) if isinstance(one, Submit)]
