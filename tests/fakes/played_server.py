"""A server on a real port whose model generates given texts: for clients with their own transport.

It runs in a thread of this process, on the real clock. Its context has room for an agent's prompt, of which
every byte is a token here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.exchange import Service
from api.http.server import Server
from api.served_models import ServedModel, ServedModels
from scheduler.answer.answer_format import AnswerFormat
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import MODEL, app_of
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.playback import Chooser, Playback
from tests.fakes.scheduling import FOLDER, make_scheduler

_CONTEXT_TOKENS = 1 << 20
_START_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the client sent it, and the status and the headers that it got."""

    path: str
    query: str
    headers: dict[str, str]
    content: bytes
    status: int
    answered: dict[str, str]

    @property
    def body(self) -> Any:
        return json.loads(self.content) if self.content else None


@dataclass(slots=True)
class PlayedServer:
    engine: Playback
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def submitted(self) -> int:
        """The number of requests that its engines got."""
        return self.engine.submitted


@contextmanager
def playing(
    choose: Chooser, spoken: AnswerFormat | HubTokenizer, *, model: ServedModel = MODEL, **options: Any
) -> Iterator[PlayedServer]:
    """Serve until the block is left. `spoken`: the model's tokenizer, or the format of one whose tokens are
    bytes. `options`: what else `app_of` takes."""
    tokenizer: HubTokenizer = ByteTokenizer(spoken) if isinstance(spoken, AnswerFormat) else spoken

    def models(engine: Playback) -> ServedModels:
        folder = replace(FOLDER, context_tokens=_CONTEXT_TOKENS)
        plan = ScriptedPlan(prefill_tokens_per_step=_CONTEXT_TOKENS)
        return ServedModels.of(
            make_scheduler(engine, plan, preparation=Preparation(tokenizer, folder)), model
        )

    with playing_models(choose, models, tokenizer=tokenizer, **options) as played:
        yield played


@contextmanager
def playing_models(
    choose: Chooser,
    models: Callable[[Playback], ServedModels],
    *,
    tokenizer: HubTokenizer | None = None,
    **options: Any,
) -> Iterator[PlayedServer]:
    """Serve these models until the block is left; one of them is the played engine's."""
    played = PlayedServer(Playback(choose=choose, tokenizer=tokenizer))
    started = threading.Event()
    stop: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def main() -> None:
        served = models(played.engine)
        app = app_of(served, **options)
        recorded = _Recorded(app, played.asked)
        server = Server(Service(recorded, lambda error, asked: played.errors.append(f"{asked}: {error!r}")))
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        played.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.fleet.run)
            await served.fleet.wait_started()
            stop.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            nursery.start_soon(server.run, listeners)
            started.set()
            await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
    thread.start()
    assert started.wait(_START_SECONDS), "the server did not start"
    try:
        yield played
    finally:
        token, scope = stop[0]
        token.run_sync_soon(scope.cancel)
        thread.join()
    assert not played.errors, played.errors


class _Recorded:
    """The application, with a record of its requests."""

    def __init__(self, app: ASGIApp, asked: list[Asked]) -> None:
        self._app = app
        self._asked = asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()
        status = 0
        answered: dict[str, str] = {}

        async def listen() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def tell(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            answered.update(_texts(message.get("headers", ())))
            await send(message)

        try:
            await self._app(scope, listen, tell)
        finally:
            headers = _texts(scope["headers"])
            query = scope["query_string"].decode()
            self._asked.append(Asked(scope["path"], query, headers, bytes(body), status, answered))


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in headers}
