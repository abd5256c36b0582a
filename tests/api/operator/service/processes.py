"""`penstock serve` without a process: its life is what the test says."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from api.operator.service.control import AskUpgrade, Order, ServeState
from api.operator.service.supervisor import ServeCommand

OLD, NEW = ServeCommand(("/old",), ("--port", "1")), ServeCommand(("/new",), ("--port", "1"))


def upgrade(
    order: Order = Order.BESIDE, ready_seconds: float = 100, streams_seconds: float = 1000
) -> AskUpgrade:
    return AskUpgrade(NEW.program, None, order, ready_seconds, streams_seconds)


@dataclass
class FakeServe:
    """Ready after `load_seconds`, unless `fails_with`, and gone `streams_seconds` after it retires."""

    command: ServeCommand
    pid: int
    load_seconds: float = 1.0
    fails_with: int | None = None
    streams_seconds: float = 10.0
    log: list[str] = field(default_factory=list)
    status: int | None = None
    is_ready: bool = False
    retires_at: float | None = None
    _changed: trio.Event = field(default_factory=trio.Event)

    @property
    def state(self) -> ServeState:
        version = "1" if self.is_ready else None
        return ServeState(self.pid, version, self.command.program, self.command.arguments, 0.0)

    @property
    def last_words(self) -> str:
        return "its last words"

    def note(self, what: str) -> None:
        self.log.append(f"{trio.current_time():g} {self.command.program[0]} {what}")

    async def live(self) -> None:
        self.note("starts")
        with trio.move_on_after(self.load_seconds):
            while self.status is None:
                await self._changed.wait()
        if self.status is None and self.fails_with is not None:
            self.end(self.fails_with)
        elif self.status is None:
            self.is_ready = True
            self.note("is ready")
            self.change()

    def change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def end(self, status: int) -> None:
        self.status = status
        self.note(f"ends {status}")
        self.change()

    async def wait_ready(self) -> bool:
        while not self.is_ready and self.status is None:
            await self._changed.wait()
        return self.status is None

    async def wait_end(self) -> int:
        while self.status is None:
            if self.retires_at is not None:
                await trio.sleep_until(self.retires_at)
                if self.status is None:
                    self.end(0)
            else:
                await self._changed.wait()
        return self.status

    def retire(self) -> None:
        self.note("retires")
        self.retires_at = trio.current_time() + self.streams_seconds
        self.change()

    def stop(self) -> None:
        self.note("stops")
        if self.status is None:
            self.retires_at = trio.current_time()
            self.end(0)

    def kill(self) -> None:
        self.note("is killed")
        if self.status is None:
            self.end(137)


@dataclass
class FakeLauncher:
    """Starts `FakeServe`s with the traits of their program, or the OSError that stands for them."""

    nursery: trio.Nursery
    traits: dict[str, dict[str, float | int]] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    log: list[str] = field(default_factory=list)
    started: list[FakeServe] = field(default_factory=list)
    broken: bool = False
    """Whether it has a bug."""

    async def __call__(self, command: ServeCommand) -> FakeServe:
        await trio.lowlevel.checkpoint()
        if self.broken:
            raise ValueError("a bug")
        if command.program[0] in self.missing:
            raise FileNotFoundError(2, "No such file or directory")
        traits = self.traits.get(command.program[0], {})
        process = FakeServe(command, len(self.started) + 1, log=self.log)
        for name, value in traits.items():
            setattr(process, name, value)
        self.started.append(process)
        self.nursery.start_soon(process.live)
        return process
