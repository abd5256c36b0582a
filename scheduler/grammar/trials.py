"""Has grammars written and checked in processes of their own (`trial.py`), two at most.

One is started for the first grammar, a second one for what comes while that is busy, and another behind each
that its grammar has ended."""

from __future__ import annotations

import math
import pickle
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from scheduler.errors import GrammarLimit, SchedulerError, Unavailable
from scheduler.grammar.answer_grammar import Asked, Written
from scheduler.grammar.trial import LENGTH_BYTES, MOST_BYTES, OUT_OF_MEMORY, framed
from scheduler.processes.child_process import ChildProcess, Exit, LaunchFailed

CPU_SECONDS = 5
"""For one grammar. 64 tools of real agents take 0.02 s."""
PROCESSES = 2
"""A tenant has one of its grammars written at a time (`worker_threads.py`), so the next tenant's has a
process."""
_STOP_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class _Trial:
    asked: Asked
    over: trio.Event = field(default_factory=trio.Event)
    outcome: Written | SchedulerError | None = None

    def end(self, outcome: Written | SchedulerError) -> None:
        self.outcome = outcome
        self.over.set()


class GrammarTrials:
    """Call it in a worker thread of trio's. `run` must be running."""

    def __init__(
        self,
        setup: Callable[[], tuple[Any, ...]],
        environment: Mapping[str, str],
        cpu_seconds: int = CPU_SECONDS,
    ) -> None:
        """`setup` returns the arguments of `GrammarWriter`."""
        self._setup = setup
        self._cpu_seconds = cpu_seconds
        self._child = ChildProcess("grammars", "scheduler.grammar.trial", (), environment, _STOP_SECONDS)
        self._send, self._receive = trio.open_memory_channel[_Trial](math.inf)
        self._to_waiting, self._waiting = trio.open_memory_channel[_Trial](0)

    def __call__(self, asked: Asked) -> Written:
        """Raise SchedulerError."""
        return trio.from_thread.run(self.written, asked)

    async def written(self, asked: Asked) -> Written:
        """Return the grammar, or why there is none: a limit, too. Raise Unavailable."""
        trial = _Trial(asked)
        self._send.send_nowait(trial)
        await trial.over.wait()
        if isinstance(trial.outcome, Written):
            return trial.outcome
        assert trial.outcome is not None
        raise trial.outcome

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            started = 0
            async for trial in self._receive:
                try:
                    # Only a process that waits takes it at once.
                    self._to_waiting.send_nowait(trial)
                except trio.WouldBlock:
                    if started == PROCESSES:
                        await self._to_waiting.send(trial)
                    else:
                        started += 1
                        nursery.start_soon(self._serve, trial)

    async def _serve(self, first: _Trial) -> None:
        """Run one process after the other, each until a grammar ends it."""
        while True:
            held = [first]
            try:
                ended = await self._child.run(partial(self._talk, held))
            except LaunchFailed as error:
                first.end(Unavailable(str(error), retry_after_seconds=1.0))
            else:
                for trial in held:
                    trial.end(self._verdict(trial.asked, ended))
            first = await self._waiting.receive()

    async def _talk(self, held: list[_Trial], stream: trio.abc.Stream) -> bool:
        """Have one grammar after the other written, until one ends the process: `held` is what it has."""
        before = await trio.to_thread.run_sync(lambda: framed((self._cpu_seconds, self._setup())))
        while True:
            (trial,) = held
            # Without a bound on seconds: the limits end the process, however busy its machine is.
            if (answer := await _answer(stream, before + framed(trial.asked))) is None:
                return False
            held.clear()
            trial.end(answer)
            before = b""
            held.append(await self._waiting.receive())

    def _verdict(self, asked: Asked, ended: Exit) -> Written | SchedulerError:
        place = asked.place
        match ended.returncode:
            case code if code == -signal.SIGXCPU:
                limit = f"{self._cpu_seconds} s of CPU time"
            case code if code == OUT_OF_MEMORY:
                limit = f"{MOST_BYTES >> 20} MiB of memory"
            case code if code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT):
                limit = "the stack that there is"
            case _:
                return Unavailable(
                    f"{place}: the process that checks grammars {ended}", retry_after_seconds=1.0
                )
        if asked.is_optional:
            return Written()
        return Written(refusal=GrammarLimit(f"{place}: its grammar takes more than {limit}", param=place))


async def _answer(stream: trio.abc.Stream, sent: bytes) -> Written | None:
    """Return what the process answers, or None if it has ended."""
    received = bytearray()
    try:
        await stream.send_all(sent)
        while len(received) < LENGTH_BYTES or len(received) < LENGTH_BYTES + _length(received):
            if not (more := await stream.receive_some(1 << 16)):
                return None
            received += more
    except trio.BrokenResourceError:
        return None
    answer: Written = pickle.loads(received[LENGTH_BYTES:])
    return answer


def _length(received: bytearray) -> int:
    return int.from_bytes(received[:LENGTH_BYTES], "big")
