"""Follow the stream of a server's `/live`, and connect again after it was lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import httpx
import trio

from api.cli.errors import OperatorError
from api.cli.running_server import FAILURES, Address, client, pieces, refusal, trouble
from api.cli.top.figures import RecentSamples
from api.cli.top.screen import View
from api.cli.top.snapshots import CacheSnapshot, LiveEvents, NotALiveStream, ServerSnapshot

_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
"""A snapshot comes twice a second."""
RETRY_SECONDS = 2.0
_ONCE_SECONDS = 1.5
"""Within it a server that has just started has a rate, and the cache is inspected."""


class Lost(Exception):
    """The stream has ended. The message is one line that says why."""


class Following:
    """Follows one server; `view` is its latest state."""

    def __init__(
        self, where: Address, model: str | None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._where = where
        self._transport = transport
        self._model = model
        self._samples = RecentSamples()
        self._scope = trio.CancelScope()
        self.view = View(where.url)
        self.changed = trio.Event()
        """Set when there is something new to show; the reader makes the next one."""

    def show_next_model(self) -> None:
        """Show the model after the one that is shown, if there are several."""
        names = [] if self.view.snapshot is None else [one.model for one in self.view.snapshot.models]
        if len(names) > 1 and self.view.snapshot is not None:
            shown = self.view.snapshot.model
            at = names.index(shown) if shown in names else -1
            self._model = names[(at + 1) % len(names)]
            self._scope.cancel()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                with trio.CancelScope() as self._scope:
                    async with aclosing(self._events()) as events:
                        async for event in events:
                            self._take(event)
                if self._scope.cancelled_caught:
                    continue
            except Lost as lost:
                self._show(View(
                    self.view.url, self.view.snapshot, self.view.figures, self.view.cache,
                    f"{lost}; trying again every {RETRY_SECONDS:g} s",
                ))  # fmt: skip
            await trio.sleep(RETRY_SECONDS)

    async def once(self) -> View:
        """Return the view when the server has had the time for all that it shows. Raise Lost."""
        # Cancelled, not left by `break`: so each generator below ends where it waits.
        with trio.CancelScope() as enough:
            try:
                await self._until(enough)
            except Lost:
                if not enough.cancel_called:
                    raise
        return self.view

    async def _until(self, enough: trio.CancelScope) -> None:
        begun: float | None = None
        async with aclosing(self._events()) as events:
            async for event in events:
                self._take(event)
                if isinstance(event, ServerSnapshot):
                    begun = event.time if begun is None else begun
                    if event.time - begun >= _ONCE_SECONDS:
                        enough.cancel()

    def _take(self, event: ServerSnapshot | CacheSnapshot) -> None:
        if isinstance(event, ServerSnapshot):
            self._samples.add(event)
            # The cache that was shown may be of another model, or of the server's previous run.
            before, cache = self.view.snapshot, self.view.cache
            if self.view.trouble or (before is not None and before.model != event.model):
                cache = None
            self._show(View(self.view.url, event, self._samples.figures(), cache))
        else:
            self._show(View(self.view.url, self.view.snapshot, self.view.figures, event))

    def _show(self, view: View) -> None:
        self.view = view
        self.changed.set()

    async def _events(self) -> AsyncGenerator[ServerSnapshot | CacheSnapshot, None]:
        reader = LiveEvents()
        self._samples = RecentSamples()  # The first snapshot of each stream has all of them.
        try:
            async with live(self._where, self._model, self._transport) as pieces:
                async for data in pieces:
                    for event in reader.feed(data):
                        yield event
        except NotALiveStream as error:
            raise Lost(f"{self._where.url} sends something else than Penstock's events: {error}") from error
        raise Lost(f"{self._where.url} has ended the stream")


@asynccontextmanager
async def live(
    where: Address, model: str | None, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Open the stream. Raise Lost, also while it is read."""
    try:
        async with (
            client(where, _TIMEOUT, transport) as http,
            http.stream("GET", f"{where.url}/live", params={"model": model} if model else {}) as response,
        ):
            if response.status_code != 200:
                raise Lost(
                    f"{where.url}/live answered {refusal(response.status_code, await response.aread())}"
                )
            async with pieces(response) as body:
                yield body
    except FAILURES as error:
        raise Lost(trouble(where, error)) from error


async def first_snapshot(
    where: Address, model: str | None, transport: httpx.AsyncBaseTransport | None = None
) -> bytes:
    """Return one snapshot as the server's own JSON. Raise OperatorError."""
    reader, found = LiveEvents(), b""
    try:
        with trio.CancelScope() as enough:
            async with live(where, model, transport) as pieces:
                async for data in pieces:
                    for name, body in reader.feed_raw(data):
                        if name == "snapshot" and not found:
                            found = body
                            enough.cancel()
    except (Lost, NotALiveStream) as error:
        raise OperatorError(str(error)) from error
    if not found:
        raise OperatorError(f"{where.url} sends no snapshot")
    return found
