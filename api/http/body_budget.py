"""The bytes of request bodies that are held at a time: of the server, and of each account.

A body is charged with its whole length before it is read, so that all that are being read can be read to
their ends. A body without room waits some seconds: in that time bodies that make progress are read, and those
that stall are refused while others wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import trio

from api.http.limits import Limits
from api.http.refusals import Refusal, RefusedByServer

SMALL_BYTES = 1 << 16
"""A body up to this size never waits: all connections together cannot hold much of it."""
_STEP_BYTES = 1 << 20
"""The step in which a body of unknown length is charged."""
_LARGE_BYTES = 1 << 20


@dataclass(eq=False, slots=True)
class _Waiter:
    account: str
    bytes: int
    granted: trio.Event = field(default_factory=trio.Event)


class BodyBudget:
    """Counts what is charged. `on_freed` is called when a large body is not held any longer."""

    def __init__(self, limits: Limits, on_freed: Callable[[], None] = lambda: None) -> None:
        self._limits = limits
        self._on_freed = on_freed
        self._waiting: list[_Waiter] = []
        self._of_account: Counter[str] = Counter()
        self.held_bytes = 0

    @property
    def crowded(self) -> bool:
        """Return whether a body waits for room."""
        return bool(self._waiting)

    def take(self, account: str, count: int) -> None:
        self.held_bytes += count
        self._of_account[account] += count

    async def wait_and_take(self, account: str, count: int) -> None:
        """Charge `account` when there is room. Raise RefusedByServer if there is none in time."""
        if self.has_room(account, count) and not self._waiting:
            self.take(account, count)
            return
        waiter = _Waiter(account, count)
        self._waiting.append(waiter)
        self._grant()
        try:
            with trio.move_on_after(self._limits.body_room_seconds):
                await waiter.granted.wait()
        except BaseException:
            if waiter.granted.is_set():
                # Granted at the moment when the client left.
                self.give_back(account, count)
            raise
        finally:
            if not waiter.granted.is_set():
                self._waiting.remove(waiter)
                self._grant()
        if not waiter.granted.is_set():
            raise RefusedByServer(
                Refusal.BODIES_TOO_MANY, retry_after_seconds=self._limits.retry_after_seconds
            )

    def give_back(self, account: str, count: int) -> None:
        self.held_bytes -= count
        self._of_account[account] -= count
        if not self._of_account[account]:
            del self._of_account[account]
        self._grant()
        if count >= _LARGE_BYTES:
            self._on_freed()

    def has_room(self, account: str, count: int) -> bool:
        return (
            self.held_bytes + count <= self._limits.held_body_bytes
            and self._of_account[account] + count <= self._limits.account_body_bytes
        )

    def _grant(self) -> None:
        """Grant room in the order in which bodies came. One without room does not hold up those behind it."""
        for waiter in tuple(self._waiting):
            if self.has_room(waiter.account, waiter.bytes):
                self._waiting.remove(waiter)
                self.take(waiter.account, waiter.bytes)
                waiter.granted.set()


class BodyCharge:
    """The charge for one body, and for what is made of it, from its first byte to its last `release`."""

    def __init__(self, budget: BodyBudget, length: int | None, account_of: Callable[[], str]) -> None:
        """`length` is the Content-Length of the request, or None if it has none. `account_of` is asked for
        who pays when something is charged."""
        self._budget = budget
        self._length = length
        self._charged = 0
        self._account_of = account_of
        self._released = False

    @property
    def crowded(self) -> bool:
        return self._budget.crowded

    @cached_property
    def _account(self) -> str:
        return self._account_of()

    async def cover(self, count: int) -> None:
        """Charge for a body of which `count` bytes are to be held now. Raise RefusedByServer if there is no
        room."""
        if self._length is not None:
            count = self._length
        if self._released or self._charged >= count:
            return
        if self._charged and self._length is None:
            count = max(count, self._charged + _STEP_BYTES)
        more = count - self._charged
        if self._charged + more <= SMALL_BYTES:
            self._budget.take(self._account, more)
        else:
            await self._budget.wait_and_take(self._account, more)
        self._charged += more

    def has_room(self) -> bool:
        """Return whether something may be made of the body: what is charged is within the bounds."""
        return self._charged <= SMALL_BYTES or self._budget.has_room(self._account, 0)

    async def wait_room(self) -> None:
        """Wait until `has_room`. Raise RefusedByServer if it is not so in time."""
        if not self.has_room():
            await self._budget.wait_and_take(self._account, 0)

    def grow(self, count: int) -> None:
        """Charge what is made of the body, or for its answer, without waiting: it is there already."""
        self._budget.take(self._account, count)
        self._charged += count

    def release(self, kept: int = 0) -> None:
        """Return the charge but for `kept` bytes: no more of the body is held any longer."""
        self._released = True
        if (returned := self._charged - kept) > 0:
            self._charged = kept
            self._budget.give_back(self._account, returned)
