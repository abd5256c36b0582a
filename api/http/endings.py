"""How many requests of clients that left end in one pass of the event loop.

An end costs some 0.4 ms: the handler unwinds, and its request leaves queue, engine and tables. A machine that
goes away resets all its connections at one moment, trio runs all that is ready before it looks at sockets and
clocks again, and a thousand ends are a third of a second in which nothing else happens. So each end reserves
its time on the loop, and those behind the first few wait for theirs (a virtual schedule, as in GCRA): their
wait is a deadline, which passes through trio's wait for I/O.
"""

from __future__ import annotations

import trio

END_SECONDS = 0.0005
"""Reserved for each end: somewhat more than one takes."""
AT_ONCE_SECONDS = 0.005
"""What is reserved ahead without a wait."""


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
