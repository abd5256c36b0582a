"""Rank 0's back end: every call that changes it is sent to the other ranks before it is made.

The engine loop, its plan, pace and memory watch run on rank 0 only, and call this back end as any other.
Collectives are made by the model alone, within `step`; calls go over sockets: a collective of our own
while a step was in flight came back full of that step's numbers.
"""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable, Container
from typing import Protocol

import msgspec

from scheduler.engine.adapter_files import AdapterRefused
from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.device import Device
from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.memory_limit import MemoryLimit
from scheduler.engine.plan import Restorable
from scheduler.engine.prefill import Chunk, PrefillLimits
from scheduler.engine.prefix.prefixes import Prefixes
from scheduler.engine.ranks.calls import (
    Admit,
    Call,
    Compare,
    EmitPending,
    EndRow,
    Forget,
    Joined,
    Keep,
    Prepare,
    Refused,
    Remove,
    SaveMemory,
    State,
    Step,
    Told,
)
from scheduler.engine.ranks.replay import Digest, EndsRows, RanksDisagree, ToldClock, disagreement, joined
from scheduler.engine.ranks.told import ToldDevice, ToldPrefixes
from scheduler.engine.row_bytes import RowBytes
from scheduler.engine.sequence import RequestRefused, Sequence
from scheduler.link.messages import AdapterSource, Ready

COMPARED_STEPS = 64
"""Ranks that differ emit tokens of nothing until they are compared."""


class Followers(Protocol):
    """The other ranks, in the order of their numbers, from 1 on."""

    def tell(self, told: Told) -> None:
        """To each of them, in order."""
        ...

    def joined(self) -> abc.Sequence[Joined]:
        """Wait until all have loaded the model."""
        ...

    def states(self) -> abc.Sequence[tuple[int, State]]:
        """The states that have arrived since the last call, each with its rank."""
        ...


class Leader:
    """A `Backend` of several ranks. Raises RanksDisagree where they do."""

    def __init__(
        self,
        own: Backend,
        followers: Followers,
        clock: ToldClock,
        time_of: Callable[[], float] = time.monotonic,
        compared_steps: int = COMPARED_STEPS,
    ) -> None:
        """`own`: rank 0's, whose prefix cache reads `clock`. Waits until the others have loaded the model.
        Raises LoadRefused where one has loaded something else."""
        self._own = own
        self._followers = followers
        self._clock = clock
        self._time_of = time_of
        self._compared_steps = compared_steps
        others = followers.joined()
        self._ranks = 1 + len(others)
        _check_equal(own, others)
        self._rows: set[int] = set()
        self._prepared: set[int] = set()
        self._saving = False
        self._digest = Digest()
        self._steps = 0
        self._expected: dict[int, State] = {}
        """By number: this rank's states until all others have sent theirs."""
        self._missing: dict[int, int] = {}
        self._comparisons = 0
        self.agreed: State | None = None
        """The last state that all ranks had."""
        self._device = ToldDevice(own.device, self._tell)
        self._prefixes: Prefixes | None = None
        if own.prefixes is not None:
            self._prefixes = ToldPrefixes(own.prefixes, self._tell)

    def _tell(self, call: Call) -> None:
        self._clock.now = self._time_of()
        self._followers.tell(Told(self._clock.now, call))

    def describe(self) -> Ready:
        described: Ready = msgspec.structs.replace(self._own.describe(), ranks=self._ranks)
        return described

    @property
    def row_bytes(self) -> RowBytes:
        return self._own.row_bytes

    @property
    def limits(self) -> PrefillLimits:
        return self._own.limits

    @property
    def prefixes(self) -> Prefixes | None:
        return self._prefixes

    @property
    def restorable(self) -> Restorable:
        return self._own.restorable

    @property
    def begun(self) -> Container[int]:
        return self._own.begun

    @property
    def has_pending(self) -> bool:
        return self._own.has_pending

    def check(self, sequence: Sequence) -> None:
        self._own.check(sequence)

    def load_adapter(self, source: AdapterSource) -> None:
        raise AdapterRefused(
            f"{source.name}: an engine of {self._ranks} ranks has no adapters: their layers are not sharded"
        )

    def unload_adapter(self, key: str) -> None:
        """There is none."""

    def preparing(self, sequence: Sequence) -> bool:
        """Told once, and only of what takes a while. The others need not be asked whether they are done: they
        wait for themselves when it is admitted."""
        request_id = sequence.request_id
        if sequence.submit.grammar and request_id not in self._prepared:
            self._prepared.add(request_id)
            self._tell(Prepare(sequence.submit))
        return self._own.preparing(sequence)

    def forget(self, sequence: Sequence) -> None:
        if sequence.request_id in self._prepared:
            self._prepared.remove(sequence.request_id)
            self._tell(Forget(sequence.request_id))
        self._own.forget(sequence)

    def admit(self, sequence: Sequence) -> None:
        self._prepared.discard(sequence.request_id)
        self._tell(Admit.of(sequence))
        try:
            self._own.admit(sequence)
        except RequestRefused:
            self._tell(Refused(sequence.request_id))
            raise
        self._rows.add(sequence.request_id)

    def keep(self, request_id: int, tokens: int) -> None:
        self._tell(Keep(request_id, tokens))
        self._own.keep(request_id, tokens)

    def remove(self, request_id: int) -> None:
        if request_id not in self._rows:
            raise KeyError(request_id)
        self._rows.remove(request_id)
        self._tell(Remove(request_id))
        self._own.remove(request_id)

    def save_memory(self, saving: bool) -> bool:
        if saving != self._saving:
            self._saving = saving
            self._tell(SaveMemory(saving))
        return self._own.save_memory(saving)

    def emit_pending(self) -> StepResult:
        self._tell(EmitPending())
        return self._counted(self._own.emit_pending())

    def step(self, chunks: abc.Sequence[Chunk] = (), predicted_seconds: float | None = None) -> StepResult:
        self.check_states()
        self._end_slow_rows()
        self._tell(Step(tuple((chunk.request_id, chunk.tokens) for chunk in chunks), predicted_seconds))
        result = self._counted(self._own.step(chunks, predicted_seconds))
        self._steps += 1
        if self._steps % self._compared_steps == 0:
            self.compare()
        return result

    def _end_slow_rows(self) -> None:
        """A time is one process's own: what it means is decided here, between two steps."""
        if isinstance(self._own, EndsRows):
            for request_id, reason in self._own.slow_rows().items():
                self._tell(EndRow(request_id, reason))
                self._own.end_row(request_id, reason)

    def _counted(self, result: StepResult) -> StepResult:
        self._digest.add(result)
        self._rows.difference_update(retired.request_id for retired in result.retired)
        return result

    def compare(self) -> None:
        """Ask the others for their states, for `check_states`."""
        self._comparisons += 1
        self._tell(Compare(self._comparisons))
        self._expected[self._comparisons] = self._digest.state(self._comparisons, self._own)
        self._missing[self._comparisons] = self._ranks - 1

    def check_states(self) -> None:
        """Raises RanksDisagree if a state that has arrived is not this rank's. Each step calls it."""
        for rank, state in self._followers.states():
            own = self._expected[state.number]
            if state != own:
                raise RanksDisagree(f"rank {rank} has computed {state}, rank 0 {own}")
            self._missing[state.number] -= 1
            if not self._missing[state.number]:
                self.agreed = own
                del self._missing[state.number], self._expected[state.number]

    def background(self, idle: bool) -> bool:
        return self._own.background(idle)

    @property
    def disk(self) -> None:
        """Ranks have no disk tier: what one has read another may not have."""
        return

    def kv_bytes(self) -> int:
        return self._own.kv_bytes()

    @property
    def device(self) -> Device:
        return self._device

    @property
    def memory_limit(self) -> MemoryLimit:
        """Rank 0's, which is the least of all ranks'."""
        return self._own.memory_limit


def _check_equal(own: Backend, others: abc.Sequence[Joined]) -> None:
    """Raises LoadRefused where another rank has loaded something else."""
    mine = joined(own)
    for rank, other in enumerate(others, 1):
        if (found := disagreement(mine, other)) is not None:
            raise LoadRefused(f"rank {rank} cannot belong to this engine: {found}")
