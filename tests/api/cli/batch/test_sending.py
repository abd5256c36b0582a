"""However a server refuses, fails or goes away: each request is answered once, and as many are under way as
it has room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import httpx
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from api.cli.batch.lines import Line
from api.cli.batch.sending import MOST_AT_ONCE, Sending
from api.cli.running_server import Address
from tests.examples import examples

WHERE = Address("http://127.0.0.1:9")


class Server:
    """Has room for `room` requests, of which each takes a second; the n-th one that has room gets
    `statuses[n]`, 0 being a lost connection, and 200 after the last."""

    def __init__(self, room: int, statuses: list[int], retry_after: str | None = None) -> None:
        self.room, self.statuses, self.retry_after = room, list(statuses), retry_after
        self.running = self.most = self.refused = 0
        self.asked: list[tuple[float, str]] = []

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((trio.current_time(), request.content.decode()))
        if self.running >= self.room:
            self.refused += 1
            headers = {} if self.retry_after is None else {"retry-after": self.retry_after}
            return httpx.Response(503, headers=headers, json={"error": {"message": "the queue is full"}})
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await trio.sleep(1)
        finally:
            self.running -= 1
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 0:
            raise httpx.ReadError("gone")
        return httpx.Response(status, json={})


def run(server: Server, requests: int) -> tuple[Counter[tuple[str, int]], Sending, float]:
    answers: Counter[tuple[str, int]] = Counter()
    lines = [Line(str(number), "/v1/chat/completions", number) for number in range(requests)]

    async def main() -> tuple[Sending, float]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(server.answer)) as http:
            sending = Sending(
                http,
                WHERE,
                lambda line: {"n": line.custom_id},
                lambda line, answer: answers.update([(line.custom_id, answer.status_code)]),
            )
            await sending.run(lines)
            return sending, trio.current_time()

    sending, seconds = trio.run(main, clock=MockClock(autojump_threshold=0))
    return answers, sending, seconds


@settings(max_examples=examples(30), deadline=None)
@given(
    requests=st.integers(0, 60),
    room=st.integers(1, 40),
    statuses=st.lists(st.sampled_from([0, 200, 400, 429, 500, 503]), max_size=30),
)
def test_each_request_is_answered_once(requests: int, room: int, statuses: list[int]) -> None:
    answers, sending, _ = run(Server(room, statuses), requests)
    assert sorted(int(name) for name, _ in answers) == list(range(requests))
    assert set(answers.values()) <= {1}
    assert {status for _, status in answers} <= {200, 400, 500}
    assert sending.in_flight == 0
    assert not sending.gave_up


def test_it_finds_the_room_that_a_server_has() -> None:
    server = Server(room=20, statuses=[])
    _, _, seconds = run(server, 2000)
    assert server.most == 20
    assert server.refused < 200
    assert seconds < 1.5 * 2000 / 20
    server = Server(room=10**6, statuses=[])
    run(server, 3000)
    assert server.most == MOST_AT_ONCE


def test_nothing_is_sent_before_the_time_that_the_server_names() -> None:
    server = Server(room=1, statuses=[], retry_after="30")
    run(server, 9)
    times = [at for at, _ in server.asked]
    assert not [at for at in times if 0 < at < 30], "the first eight were refused but one"


def test_a_servers_error_is_an_answer_at_its_third_time() -> None:
    answers, _, _ = run(Server(1, [500, 500, 500, 500]), 1)
    assert answers == {("0", 500): 1}


@trio_test
async def test_it_gives_up_on_a_server_that_is_away(autojump_clock: MockClock) -> None:
    """Not while an answer is under way, however long that takes behind others."""
    gave_up = await _with(lambda request: httpx.Response(503, json={"error": {"message": "draining"}}))
    assert gave_up == "503: draining"
    assert 600 < trio.current_time() < 800


async def _with(answer: Callable[[httpx.Request], httpx.Response]) -> str:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        sending = Sending(http, WHERE, lambda line: {}, lambda line, answer: None)
        await sending.run([Line("0", "/v1/completions", 0), Line("1", "/v1/completions", 0)])
        return sending.gave_up
