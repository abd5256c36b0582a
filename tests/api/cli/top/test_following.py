"""Follow a server's own stream, and what is said while there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
import trio.testing
from trio.testing import trio_test

from api.cli.errors import OperatorError
from api.cli.running_server import Address
from api.cli.top.following import RETRY_SECONDS, Following, Lost, first_snapshot
from api.cli.top.snapshots import ServerSnapshot
from tests.api.cli.top.test_screen import lines
from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

WHERE = Address("http://penstock", "k")


class Streams(httpx.AsyncBaseTransport):
    """Answers each request with one of these: an error, a response, or pieces behind which it is silent."""

    def __init__(self, *answers: Exception | httpx.Response | list[bytes]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, stream=_Silent(answer))


class _Silent(httpx.AsyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        await trio.sleep_forever()


def event(time: float, model: str = "tiny", *models: str) -> bytes:
    others = [{"model": name} for name in models]
    history = {"generated": [time]}
    body = {
        "time": time,
        "generated_tokens": 10 * time,
        "model": model,
        "models": others,
        "history": history,
    }
    return b"event: snapshot\ndata: " + msgspec.json.encode(body) + b"\n\n"


@trio_test
async def test_a_servers_own_stream_becomes_frames(autojump_clock: trio.testing.MockClock) -> None:
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler) as nursery, client_of(scheduler) as client:
        following = Following(WHERE, None, client._transport)
        bodies: list[bytes] = []

        async def read_first() -> None:
            bodies.append(await first_snapshot(WHERE, "tiny", client._transport))

        nursery.start_soon(following.once)
        nursery.start_soon(read_first)
        await client.post("/v1/chat/completions", json=chat("hello"))
        await trio.sleep(4)
        scheduler.start_drain()
        await trio.sleep(1)
    view = following.view
    assert view.snapshot is not None
    assert (view.snapshot.model, view.snapshot.generated_tokens) == ("tiny", 8.0)
    assert view.figures is not None
    assert view.figures.ttft_seconds is not None
    assert view.cache is not None
    assert lines(view)[0] == "penstock top  ready  tiny  http://penstock"
    assert msgspec.json.decode(bodies[0], type=ServerSnapshot).model == "tiny"


@trio_test
async def test_a_server_that_is_gone_is_awaited(autojump_clock: trio.testing.MockClock) -> None:
    """What it last said stays, with the reason why nothing new comes."""
    transport = Streams(
        httpx.Response(200, content=event(1.0)),
        httpx.ConnectError("refused"),
        httpx.Response(403, json={"error": {"message": "needs an admin key"}}),
        httpx.Response(200, content=b"event: snapshot\ndata: {}\n\n"),
        [event(2.0)],
    )
    following = Following(WHERE, None, transport)
    troubles = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(following.run)
        for _ in range(4):
            await trio.testing.wait_all_tasks_blocked()
            troubles.append(following.view.trouble)
            assert following.view.snapshot is not None
            await trio.sleep(RETRY_SECONDS)
        await trio.testing.wait_all_tasks_blocked()
        view = following.view
        nursery.cancel_scope.cancel()
    for trouble, says in zip(
        troubles,
        (
            "has ended the stream",
            "refused",
            "answered 403: needs an admin key",
            "something else than Penstock",
        ),
        strict=True,
    ):
        assert says in trouble
        assert trouble.endswith("; trying again every 2 s")
    assert view.trouble == ""
    assert view.snapshot is not None
    assert view.snapshot.time == 2.0
    assert view.figures is not None
    assert view.figures.output_rates == (2.0,), "each stream begins with all that the server remembers"


@trio_test
async def test_the_next_model_is_shown_at_once(autojump_clock: trio.testing.MockClock) -> None:
    transport = Streams([event(1.0, "tiny", "tiny", "large")], [event(2.0, "large", "tiny", "large")])
    following = Following(WHERE, None, transport)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(following.run)
        await trio.testing.wait_all_tasks_blocked()
        following.show_next_model()
        await trio.testing.wait_all_tasks_blocked()
        view = following.view
        nursery.cancel_scope.cancel()
    assert transport.asked == ["http://penstock/live", "http://penstock/live?model=large"]
    assert view.snapshot is not None
    assert view.snapshot.model == "large"
    assert view.figures is not None
    assert view.figures.output_rates == (2.0,)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.ReadTimeout(""), "is silent"),
        (httpx.Response(200, content=b""), "has ended the stream|sends no snapshot"),
        (httpx.Response(404, json={"error": {"message": "no model 'x'"}}), "answered 404: no model 'x'"),
    ],
)
def test_one_frame_or_an_error(answer: Exception | httpx.Response, says: str) -> None:
    with pytest.raises(Lost, match=says):
        trio.run(Following(WHERE, "x", Streams(answer)).once)
    with pytest.raises(OperatorError, match=says):
        trio.run(first_snapshot, WHERE, "x", Streams(answer))
