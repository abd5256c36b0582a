"""A few requests begin, and those of a few clients that left end, in a pass of the event loop.

Reading a head, routing and validating a small body cost 1 to 5 ms of the loop, and trio runs all tasks that
are ready before it looks at sockets again: two hundred agents that asked at one moment were 0.3 to 0.6 s in
which no stream got a token. So each beginning waits for its turn, first come, first served, and between two
turns everything else runs. Probes do not wait.

An end costs some 0.4 ms: the handler unwinds, and its request leaves queue, engine and tables. A machine that
goes away resets all its connections at one moment, and a thousand ends are a third of a second. So each end
reserves its time on the loop, and those behind the first few wait for theirs (a virtual schedule, as in
GCRA): their wait is a deadline, which passes through trio's wait for I/O.
"""

from __future__ import annotations

import trio

AT_ONCE = 2
"""Begin in one pass: a pass takes 40 to 50 ms then, two thirds of that with one, and half as much again with
four. With one a crowd of a thousand drains at half the pace where each pass waits for a core."""
END_SECONDS = 0.0005
"""Reserved for each end: somewhat more than one takes."""
AT_ONCE_SECONDS = 0.005
"""What is reserved ahead without a wait."""


class Beginnings:
    """One for all connections of a server."""

    def __init__(self) -> None:
        self._turns = trio.Semaphore(AT_ONCE)

    async def turn(self) -> None:
        async with self._turns:
            # trio gives a turn to who has waited longest, whose task runs in the next pass.
            pass


class Turn:
    """One request's. What it waits for, but for a part of its head or body, comes after its beginning."""

    def __init__(self, beginnings: Beginnings) -> None:
        self._beginnings = beginnings
        self._is_had = False

    async def take(self) -> None:
        """Wait until it is this request's turn, unless that is so already."""
        if not self._is_had:
            await self._beginnings.turn()
            self._is_had = True

    def skip(self) -> None:
        """Let this request, a probe, begin at once."""
        self._is_had = True

    def lose(self) -> None:
        """The request has waited for a part of it: others had their turns meanwhile."""
        self._is_had = False


class Endings:
    """One for all connections of a server."""

    def __init__(self) -> None:
        self._reserved_until = 0.0

    async def wait(self) -> None:
        """Wait until it is this end's turn: not at all while few end."""
        now = trio.current_time()
        self._reserved_until = max(self._reserved_until, now) + END_SECONDS
        if self._reserved_until - now > AT_ONCE_SECONDS + END_SECONDS / 2:
            await trio.sleep_until(self._reserved_until - AT_ONCE_SECONDS)
