"""A conversation that a preparation process holds for one client's request.

If the process ends, another one makes the conversation again from the body's text, which is kept until the
prompt is prepared: a request is not lost by what another one did to the process.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from api.body_reading import ReadBody
from api.preparers.pickles import HeldBody, HeldChat, Work
from api.preparers.session import PreparerEnded, Session
from scheduler.errors import PreparationFailure
from scheduler.prompt.offload import RemoteChat

_T = TypeVar("_T")

_MOST_DEATHS = 2
"""Of processes while they worked for one request. One may have been killed for another reason."""


@dataclass(frozen=True, slots=True)
class Origin:
    """How a process makes a conversation."""

    work: Work
    of: Origin | None = None
    """What is made before it, as the work's first argument."""


class Client:
    """One client's request, as the preparation processes see it."""

    def __init__(self, place: Callable[[], Session], tenant: str, *, large: bool) -> None:
        """`place`: says which process works for it, or raises Unavailable."""
        self.place, self._tenant, self._large = place, tenant, large
        self._deaths = 0

    async def ask(self, session: Session, origin: Origin, of: int | None) -> tuple[Any, list[Remote]]:
        """Return the result of the origin's work, and what the process holds since then. Raise what the work
        raises, PreparerEnded or PreparationFailure."""
        made: list[Remote] = []

        def found(held: HeldBody | HeldChat) -> ReadBody | RemoteChat:
            made.append(Remote(self, session, held.handle, origin))
            if isinstance(held, HeldBody):
                return held.shell
            return RemoteChat((), **held.fields, at=made[-1])

        try:
            return await session.call(origin.work, of, found, self._tenant, large=self._large), made
        except PreparerEnded as ended:
            self._deaths += ended.running
            if self._deaths >= _MOST_DEATHS:
                raise PreparationFailure(
                    f"{_MOST_DEATHS} processes that read this request ended meanwhile"
                ) from ended
            raise

    async def make(self, session: Session, origin: Origin) -> Remote:
        """Let `session` make a conversation from the beginning."""
        base = None if origin.of is None else await self.make(session, origin.of)
        _, (made,) = await self.ask(session, origin, None if base is None else base.handle)
        return made


class Remote:
    """Implements `scheduler.prompt.offload.Elsewhere`."""

    def __init__(self, client: Client, session: Session, handle: int, origin: Origin) -> None:
        self._client = client
        self._origin: Origin | None = origin
        self._keep(session, handle)

    def _keep(self, session: Session, handle: int) -> None:
        self._session, self.handle = session, handle
        # Also if it is simply forgotten, as by a request that is refused.
        self._forget = weakref.finalize(self, session.free_soon, handle)

    async def run(self, work: Callable[..., _T], /, *args: Any) -> _T:
        """Raises what `work` raises, PreparationFailure or Unavailable."""
        assert self._origin is not None, "a conversation is used after it was dropped"
        origin = Origin(Work(work, args), self._origin)
        while True:
            try:
                if self._session.ended:
                    await self._make_again(self._origin)
                value: _T = (await self._client.ask(self._session, origin, self.handle))[0]
                return value
            except PreparerEnded:
                continue

    async def _make_again(self, origin: Origin) -> None:
        session = self._client.place()
        made = await self._client.make(session, origin)
        made._forget.detach()
        self._keep(session, made.handle)

    def drop(self) -> None:
        self._origin = None
        self._forget()
