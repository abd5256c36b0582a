"""What all bounds on clients allow, at once: the server's memory is below the sum that SECURITY.md names."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio

from api.answers.whole_answer import MAX_HELD_BYTES
from api.bodies.json_text import MAX_CONTAINERS
from api.dialects.responses.running import MAX_BACKGROUND
from api.dialects.responses.store import ResponseStore
from api.http.limits import Limits
from loadtests.processes import resident_bytes
from tests.end_to_end.serving import Served, start

_MEGABYTE = 1 << 20
_TENANTS = ("a", "b")
_LIMITS, _STORE = Limits(), ResponseStore.by_default()
_SUM = (
    _LIMITS.held_body_bytes + MAX_CONTAINERS * 2560 + _STORE._max_bytes + len(_TENANTS) * 2 * MAX_HELD_BYTES
)
"""Bodies, with what is made and kept of them; one large model; the store; responses in the background, and
their events. No prompt here is long: what tokenizing takes, and the queue's tokens, are in none."""
_LONG = "x " * (7 * _MEGABYTE)
_LOOK_SECONDS = 0.05
_SECONDS = 20.0
"""How long what stays is held: a body waits for room for seven."""


def _request(path: str, tenant: str, body: bytes | None, more: int = 0) -> bytes:
    """`more`: bytes that are announced, and never sent."""
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: localhost\r\nx-tenant: {tenant}\r\n"
    if body is not None:
        head += f"content-type: application/json\r\ncontent-length: {len(body) + more}\r\n"
    return f"{head}\r\n".encode() + (body or b"")


class Crowd:
    """Clients of one server, and the first lines of what they heard."""

    def __init__(self, served: Served) -> None:
        self.port = served.port
        self.heard: Counter[tuple[str, bytes]] = Counter()
        self.stored: list[str] = []
        self.peak_bytes = 0

    async def say(self, name: str, request: bytes, *, slowly: bool = False) -> bytes:
        """Send it, and read the answer to its end, or `slowly`: a little of it."""
        answer = b""
        with trio.move_on_after(_SECONDS if slowly else 240):
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(request)
                    while b"\r\n\r\n" not in answer and (more := await stream.receive_some(4096)):
                        answer += more
                    self.heard[name, answer[9:12]] += 1
                    length = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                    end = answer.find(b"\r\n\r\n") + 4 + int(length or 1 << 30)
                    while not slowly and len(answer) < end and not answer.endswith(b"\r\n0\r\n\r\n"):
                        if not (more := await stream.receive_some(1 << 16)):
                            break
                        answer += more
                    if slowly:
                        await trio.sleep(_SECONDS)
        return answer

    async def ask(
        self, tenant: str, path: str, body: dict[str, Any] | None, *, slowly: bool = False
    ) -> bytes:
        text = None if body is None else json.dumps(body).encode()
        return await self.say(path.split("/")[2], _request(path, tenant, text), slowly=slowly)

    async def fill_the_store(self, tenant: str) -> None:
        for _ in range(5):
            asked = {"input": "x", "max_output_tokens": 1, "metadata": {"a": _LONG[: 12 * _MEGABYTE]}}
            made = await self.ask(tenant, "/v1/responses", asked)
            self.stored.append(json.loads(made.partition(b"\r\n\r\n")[2])["id"])

    async def watch(self, pid: int) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, await trio.to_thread.run_sync(resident_bytes, pid))
            await trio.sleep(_LOOK_SECONDS)

    async def come(self) -> None:
        for tenant in _TENANTS:
            await self.fill_the_store(tenant)
        async with trio.open_nursery() as nursery:
            for tenant in _TENANTS:
                await self.everything(nursery, tenant)

    async def everything(self, nursery: trio.Nursery, tenant: str) -> None:
        """What each bound allows one tenant, and more."""
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 100}
        many = {"messages": [{"role": "user", "content": "x"}] * 60_000}
        tool = {"name": "f", "description": "x" * 1_500_000}
        unused = {"tool_choice": "none", "stream": True}
        talk = {**chat, **unused, "tools": [{"type": "function", "function": tool}]}
        asked = {"input": "x", "max_output_tokens": 5_000, "tools": [{"type": "function", **tool}]}
        background = {**asked, **unused, "background": True}
        start = nursery.start_soon
        for _ in range(10):
            stalled = _request("/v1/chat/completions", tenant, b" " * (15 * _MEGABYTE), more=1)
            start(self.say, "stalled", stalled)
            start(self.ask, tenant, "/v1/chat/completions", many)
        for _ in range(100):
            start(partial(self.ask, tenant, "/v1/chat/completions", talk, slowly=True))
        for _ in range(MAX_BACKGROUND + 4):
            start(partial(self.ask, tenant, "/v1/responses", background, slowly=True))
        for name in self.stored * 8:
            start(partial(self.ask, tenant, f"/v1/responses/{name}", None, slowly=True))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_that_the_bounds_allow_at_once_takes_no_more_than_their_sum() -> None:
    """670 MiB of 928; it was 960: what answers keep and what is in the background were in no bound."""
    options = ("--engine", "scripted", "--scripted", "step_seconds=0.5", "--tenant-header", "x-tenant")
    with start(*options) as served:
        crowd = Crowd(served)

        async def run() -> int:
            await crowd.ask("a", "/v1/completions", {"prompt": "x", "max_tokens": 1})
            before = resident_bytes(served.process.pid)
            async with trio.open_nursery() as watch:
                watch.start_soon(crowd.watch, served.process.pid)
                await crowd.come()
                watch.cancel_scope.cancel()
            return crowd.peak_bytes - before

        peak = trio.run(run)
        print(f"{peak >> 20} MiB of {_SUM >> 20}", dict(crowd.heard))
        assert _SUM / 3 < peak < _SUM, dict(crowd.heard)
        assert {name for name, _ in crowd.heard} >= {"chat", "responses", "stalled"}
        assert not any(status.startswith(b"50") and status != b"503" for _, status in crowd.heard)
