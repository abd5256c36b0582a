"""All preparation processes of this server: which of them reads a body, and how they are kept running."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import structlog
import trio

from api.body_reading import Policy, ReadBody, read_body
from api.openai.messages import Body
from api.preparers.homes import Heads, Homes, heads_of
from api.preparers.messages import Caches, FromPreparer, Serve, server_inbound
from api.preparers.pickles import Work
from api.preparers.preparer import Recipe
from api.preparers.remote import Client, Origin, Remote
from api.preparers.session import PreparerEnded, Session
from scheduler.errors import LinkError, Unavailable
from scheduler.link.channel import EngineGone, FrameChannel
from scheduler.link.child_process import LaunchFailed
from scheduler.link.side_process import SideLauncher, SideProcess
from scheduler.prompt.preparation import Preparation
from scheduler.statistics import PieceStatistics, TextStatistics
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.metrics import Metrics

_log = structlog.get_logger("serving")

MOST_BYTES = 1 << 22
"""Longer bodies are read in the server itself, one at a time: validated, each takes 50 bytes for each of its
own, and so may as many at once as there are processes."""
_LARGE_BYTES = 1 << 20
"""After a longer body a process returns its memory to the system, which takes a few milliseconds."""
BUSY_CALLS = 16
"""A conversation leaves its process where that one has this many calls more than another: a turn of 100,000
tokens has three calls, and costs 13 times more where its past is not known."""
_BACKOFF_FIRST_SECONDS, _BACKOFF_LIMIT_SECONDS = 0.1, 10.0
_STABLE_SECONDS = 60.0


class Preparers:
    """Implements `api.json_route.BodyReaders`. `run` must be running."""

    def __init__(self, launchers: Sequence[SideLauncher], metrics: Metrics) -> None:
        self._recipes: dict[str, Recipe] = {}
        self._own: dict[int, tuple[str, Preparation]] = {}
        """This process's, with the name of its model, by its identity."""
        self._slots = [_Slot(launcher, self) for launcher in launchers]
        self._homes = Homes()
        self._ended = Counter[tuple[str, str]]()
        """Sums over the processes that have ended: by model and field of `Caches`."""
        self._deaths = 0
        self._metrics = metrics
        self._telemetry = Containment(metrics)

    @classmethod
    def of(cls, processes: int, environment: Mapping[str, str], metrics: Metrics) -> Preparers:
        """Return real processes, as many as that."""
        process = SideProcess("preparation", "api.preparers", (), environment)
        return cls([process] * processes, metrics)

    def add(self, model: str, recipe: Recipe, preparation: Preparation) -> None:
        """Prepare the prompts of a model, too. Before `run`. `preparation`: this process's own."""
        self._recipes[model] = recipe
        self._own[id(preparation)] = model, preparation

    async def run(self) -> None:
        """Never returns by itself."""
        async with trio.open_nursery() as nursery:
            for slot in self._slots:
                nursery.start_soon(slot.run)

    @property
    def ready(self) -> int:
        """How many processes take bodies now."""
        return len(self.sessions())

    async def read(
        self, model: type[Body], text: bytes, refuse: Policy, *, tenant: str, session: str | None
    ) -> tuple[ReadBody, Remote] | None:
        """Return the rest of the body, and where its conversation is; None: no process can take it. Raise
        what `read_body` does, or PreparationFailure."""
        if len(text) > MOST_BYTES:
            return None
        heads = heads_of(text) if session is None else ()
        place = partial(self._place, tenant, session, heads)
        client = Client(place, tenant, large=len(text) > _LARGE_BYTES)
        origin = Origin(Work(read_body, (model, text, refuse)))
        while self.sessions():
            try:
                shell, (conversation,) = await client.ask(place(), origin, None)
            except PreparerEnded:
                continue
            return shell, conversation
        return None

    def report(self) -> dict[str, Any]:
        """What `/v1/scheduler` says of them."""
        calls = sum(session.load for session in self.sessions())
        return {"processes": len(self._slots), "ready": self.ready, "calls": calls, "deaths": self._deaths}

    def caches(self, model: str) -> tuple[PieceStatistics, TextStatistics]:
        """What all processes keep and have kept for the prompts of a model."""
        sums = Counter({name: count for (of, name), count in self._ended.items() if of == model})
        for one in chain.from_iterable(session.caches for session in self.sessions()):
            if one.model == model:
                sums.update(_numbers(one))
        return (
            PieceStatistics(sums["tokens"], sums["kept_tokens"], sums["pieces_bytes"]),
            TextStatistics(None, sums["messages"], sums["kept_messages"], sums["texts_bytes"]),
        )

    def sessions(self) -> list[Session]:
        """Those that take bodies now."""
        return [slot.session for slot in self._slots if slot.session is not None and slot.session.ready]

    def _place(self, tenant: str, session: str | None, heads: Heads) -> Session:
        """Return the process for a body: the one that keeps what it has made of the conversation's earlier
        turns, or the least busy one. Raises Unavailable if none runs."""
        running = {
            number: slot.session
            for number, slot in enumerate(self._slots)
            if slot.session is not None and slot.session.ready
        }
        if not running:
            raise Unavailable(
                "the processes that read long requests are being started again", retry_after_seconds=1.0
            )
        chosen = min(running, key=lambda number: running[number].load)
        if session is not None:
            home: int | None = self._homes.of_session(tenant, session, running)
        else:
            home = self._homes.of_text(tenant, heads, running)
        if home is not None and running[home].load - running[chosen].load < BUSY_CALLS:
            chosen = home
        if session is None:
            self._homes.note(tenant, heads, chosen)
        return running[chosen]

    # --- what the slots tell

    def new_session(self, stream: trio.abc.Stream) -> tuple[FrameChannel[FromPreparer], Session]:
        channel = FrameChannel(stream, server_inbound())
        channel.send_nowait(Serve(pickle.dumps(self._recipes)))
        names = {identity: name for identity, (name, _) in self._own.items()}
        return channel, Session(channel, names, self._observe)

    def _observe(self) -> None:
        self._telemetry.sample(self._metrics.preparation_processes.set, self.ready)

    def lost(self, last_words: str, restart_seconds: float) -> None:
        _log.warning("preparation_process_ended", reason=last_words, restart_in_seconds=restart_seconds)
        self._deaths += 1
        self._telemetry.sample(self._metrics.preparation_process_deaths.inc)

    def ended(self, session: Session) -> None:
        """At once, so that no sum becomes smaller."""
        self._observe()
        for one in session.caches:
            kept = {name: count for name, count in _numbers(one).items() if not name.endswith("_bytes")}
            self._ended.update({(one.model, name): count for name, count in kept.items()})


def _numbers(caches: Caches) -> dict[str, int]:
    return {name: getattr(caches, name) for name in Caches.__struct_fields__ if name != "model"}


class _Slot:
    """One process after another."""

    def __init__(self, launcher: SideLauncher, owner: Preparers) -> None:
        self._launcher, self._owner = launcher, owner
        self.session: Session | None = None

    async def run(self) -> None:
        backoff = _BACKOFF_FIRST_SECONDS
        while True:
            started = trio.current_time()
            try:
                last_words = await self._launcher.run(self._serve)
            except LaunchFailed as error:
                last_words = str(error)
            if trio.current_time() - started > _STABLE_SECONDS:
                backoff = _BACKOFF_FIRST_SECONDS
            self._owner.lost(last_words or "it ended without a word", backoff)
            await trio.sleep(backoff)
            backoff = min(2 * backoff, _BACKOFF_LIMIT_SECONDS)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """Return when the process is gone."""
        channel, self.session = self._owner.new_session(stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.write_forever)
                with suppress(EngineGone, LinkError):
                    await self.session.receive_forever()
                nursery.cancel_scope.cancel()
        finally:
            self.session.end()
            self._owner.ended(self.session)
            self.session = None
