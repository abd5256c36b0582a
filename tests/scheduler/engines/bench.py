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
from scheduler.processes.process import Exit, Session
from scheduler.requests.record import StreamRecord
from scheduler.shared.framing import encode
from scheduler.shared.messages import Begun, Counters, Ready, Retired, StepOutput, ToEngine, TokenOut
from scheduler.statistics import DeathCause
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.request_recorder import RequestRecorder
from tests.fakes.scheduling import in_place
from tests.scheduler.requests.records import make_record

NO_FOLDER = Path("none")
READY = Ready(1, "cpu", "test", 8192, 64, 0, "float32")
TRUSTED_TOKENS = 4


class NoLauncher:
    async def run(self, session: Session) -> Exit:
        raise NotImplementedError  # The pool's tasks do not run.


class PoolBench:
    """`sent` has each engine's messages by its name."""

    def __init__(
        self,
        engines: int,
        *,
        slots: int = 2,
        lookahead: int = 0,
        model_folder: Path = NO_FOLDER,
        model: str = "",
    ) -> None:
        config = SchedulerConfig(
            EngineConfig("scripted", str(model_folder), max_slots=slots, model=model),
            intake=IntakeConfig(max_queue=10**6, lookahead=lookahead),
            engines=engines,
        )
        # The pool's tasks do not run.
        config = replace(config, load_at_start=False)
        self.accepted: list[StreamRecord] = []
        self.sent: dict[str, list[ToEngine]] = {}
        self._ids = count(1)
        self.pool = Pool(
            config,
            EngineProvision(lambda number: NoLauncher()),
            RequestRecorder(Metrics().of_model("tiny")),
            in_place,
            lambda: None,
            clock=lambda: 0.0,
        )

    # --- what clients do

    def arrive(self, session: str | None = None, prompt: list[int] | None = None) -> StreamRecord:
        """Take a request in, as the service does."""
        record = make_record(next(self._ids), session=session, prompt=prompt, max_tokens=1000)
        self.accepted.append(record)
        self.pool.accept([record])
        return record

    def cancel(self, record: StreamRecord) -> None:
        record.abandon()
        self.pool.cancel(record)

    def read_late(self) -> None:
        """Let nothing be read in its own step from now on, as in steps whose budget is spent."""
        ticks = count()
        self.pool.reading._clock = lambda: float(next(ticks))
        self.pool.reading._nursery = object()  # type: ignore[assignment]

    # --- what engines do

    def engine(self, name: str | int) -> Engine:
        return self.pool[str(name)]

    def ready(self, *names: str | int) -> None:
        for name in names:
            self.sent.setdefault(str(name), [])
            self.engine(name).process_ready(READY, partial(self._send, str(name)))

    def _send(self, name: str, message: ToEngine) -> None:
        encode(message)  # As the link does, with all that it raises.
        self.sent[name].append(message)

    def step(self, name: str | int, retired: Sequence[StreamRecord] = ()) -> None:
        """A token for each request that is not retired."""
        self.compute(name, self.on_board(name), retired)

    def compute(
        self, name: str | int, rows: Sequence[StreamRecord], retired: Sequence[StreamRecord] = ()
    ) -> None:
        """A step of these rows, of which some are retired."""
        tokens = [TokenOut(record.request_id, 65) for record in rows if record not in retired]
        ended = [Retired(record.request_id, "length") for record in retired]
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
        rows = self.on_board(name) if in_step is None else in_step
        engine.began(Begun("prefill", tuple(one.request_id for one in rows)))
        engine.lost("it died")
        engine.died(Death(cause))

    def on_board(self, name: str | int) -> list[StreamRecord]:
        return list(self.engine(name).on_board.values())
