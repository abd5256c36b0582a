"""Engines of one memory budget as messages and numbers, and the fleet's part: tests say who obeys when."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from scheduler.fleet.memory_budget import MemoryBudget
from scheduler.shared.messages import Counters, MemoryState, Ready, SetMemoryLimit

BUDGET = 10_000
NAMES = ("a", "b", "c", "d")
FLOORS = dict(zip(NAMES, (1000, 2500, 4000, 6000), strict=True))


@dataclass(slots=True)
class Simulated:
    """An engine process as its README says: prefixes fill what it may use, rows are never given up for a
    lower limit. `inbox` and `outbox` are the link."""

    floor: int
    limit: int
    asked: int
    rows: list[int] = field(default_factory=list)
    prefixes: int = 0
    busy_seconds: float = 0.0
    inbox: deque[SetMemoryLimit] = field(default_factory=deque)
    outbox: deque[Counters] = field(default_factory=deque)

    @property
    def least(self) -> int:
        return self.floor + sum(self.rows)

    @property
    def used(self) -> int:
        return self.least + self.prefixes

    def iterate(self) -> None:
        """Apply one message, and report. Another may arrive in the middle of a long step."""
        if self.inbox:
            self.asked = self.inbox.popleft().limit_bytes
        self.limit = max(self.asked, min(self.limit, self.least))
        self.prefixes = max(0, min(self.prefixes, self.limit - self.least))
        self.report()

    def admit(self, size: int) -> None:
        if self.least + size <= self.limit:
            self.rows.append(size)
            self.prefixes = min(self.prefixes, self.limit - self.least)
        self.iterate()

    def fill(self, size: int) -> None:
        self.prefixes = max(0, min(self.prefixes + size, self.limit - self.least))
        self.iterate()

    def end(self) -> None:
        if self.rows:
            self.prefixes += self.rows.pop()
        self.iterate()

    def report(self) -> None:
        state = MemoryState(
            used=self.used,
            limit=self.limit,
            floor=self.floor,
            least=self.least,
            kept=self.used,
            asked=self.asked,
        )
        counters = Counters(busy_seconds=self.busy_seconds, running=len(self.rows), guard=state)
        self.outbox.append(counters)


def ready_of(limit: int, floor: int) -> Ready:
    return Ready(1, "cpu", "test", 100, 1, 0, "none", memory_limit_bytes=limit, memory_floor_bytes=floor)


@dataclass(slots=True)
class World:
    """The fleet's part: it loads, delivers and reports."""

    budget: MemoryBudget = field(default_factory=MemoryBudget)
    engines: dict[str, Simulated] = field(default_factory=dict)
    loading: dict[str, Simulated] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    sent: int = 0
    now: float = 0.0

    def want(self, name: str) -> None:
        if name not in self.wanted | self.engines.keys() | self.loading.keys():
            self.wanted.add(name)
            self.budget.reserve(name, FLOORS[name])

    def start(self) -> None:
        """Loads are made one at a time."""
        for name in sorted(self.wanted):
            if not self.loading and self.budget.may_load(name):
                given = self.budget.given(name)
                limit = BUDGET if given is None else given.limit_bytes
                self.loading[name] = Simulated(FLOORS[name], limit, limit)
                self.wanted.remove(name)

    def loaded(self) -> None:
        for name, engine in self.loading.items():
            self.engines[name] = engine
            self.budget.ready(name, ready_of(engine.limit, engine.floor))
        self.loading = {}

    def rebalance(self) -> list[tuple[str, SetMemoryLimit]]:
        messages = self.budget.rebalance(self.now)
        for name, message in messages:
            self.engines[name].inbox.append(message)
        self.sent += len(messages)
        return messages

    def deliver(self, name: str) -> None:
        engine = self.engines[name]
        if engine.outbox:
            self.budget.observe(name, engine.outbox.popleft(), self.now)

    def quiesce(self, rounds: int = 30) -> None:
        """Everybody does what is due, until nothing moves."""
        for _ in range(rounds):
            self.now += 1.0
            self.rebalance()
            for name, engine in self.engines.items():
                engine.iterate()
                while engine.outbox:
                    self.deliver(name)
            self.start()
            self.loaded()

    def load(self, *names: str) -> None:
        for name in names:
            self.want(name)
            self.quiesce()
            assert name in self.engines

    @property
    def limits(self) -> dict[str, int]:
        return {name: engine.limit for name, engine in self.engines.items()}
