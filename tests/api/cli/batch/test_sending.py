"""However a server refuses, fails or goes away: each request is answered once, and as many are under way as
it has room for."""

from __future__ import annotations

import errno
import io
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from api.cli.batch.lines import Line
from api.cli.batch.sending import MOST_AT_ONCE, Sending
from api.cli.running_server import RunningServer
from tests.examples import examples


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


def run(
    answer: Callable[[httpx.Request], Any],
    requests: int,
    body: bytes = b'{"body": {"model": "m"}}\n',
    answers: io.BytesIO | None = None,
) -> tuple[Counter[tuple[str, int]], Sending, float]:
    """Return how often each request was answered with each status, and how long all took."""
    lines = [Line(str(number), "/v1/chat/completions", len(body) * number) for number in range(requests)]
    answers, progress = answers or io.BytesIO(), list[None]()
    server = RunningServer("http://127.0.0.1:9", None, (), is_penstock=True)
    transport = httpx.MockTransport(answer)
    sending = Sending(
        server, None, io.BytesIO(body * requests), answers, lambda: progress.append(None), transport
    )

    async def main() -> float:
        await sending.run(lines)
        return trio.current_time()

    seconds = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(progress) == sending.statuses.total()
    entries = [json.loads(line) for line in answers.getvalue().splitlines()]
    statuses = Counter((entry["custom_id"], entry["response"]["status_code"]) for entry in entries)
    return statuses, sending, seconds


@settings(max_examples=examples(30), deadline=None)
@given(
    requests=st.integers(0, 60),
    room=st.integers(1, 40),
    statuses=st.lists(st.sampled_from([0, 200, 400, 429, 500, 503]), max_size=30),
)
def test_each_request_is_answered_once(requests: int, room: int, statuses: list[int]) -> None:
    answers, sending, _ = run(Server(room, statuses).answer, requests)
    assert sorted(int(name) for name, _ in answers) == list(range(requests))
    assert set(answers.values()) <= {1}
    assert {status for _, status in answers} <= {200, 400, 500}
    assert sending.room.borrowed_tokens == 0
    assert not sending.gave_up


def test_it_finds_the_room_that_a_server_has() -> None:
    server = Server(room=20, statuses=[])
    _, _, seconds = run(server.answer, 2000)
    assert server.most == 20
    assert server.refused < 200
    assert seconds < 1.5 * 2000 / 20
    server = Server(room=10**6, statuses=[])
    run(server.answer, 3000)
    assert server.most == MOST_AT_ONCE


def test_nothing_is_sent_before_the_time_that_the_server_names() -> None:
    server = Server(room=1, statuses=[], retry_after="30")
    run(server.answer, 9)
    times = [at for at, _ in server.asked]
    assert not [at for at in times if 0 < at < 30], "the first eight were refused but one"


def test_what_no_json_has_is_the_servers_to_refuse() -> None:
    """Half a character, and a number that is none."""
    body = b'{"body": {"model": "m", "prompt": "\\ud800", "temperature": NaN}}\n'
    refuse = {True: httpx.Response(400, json={}), False: httpx.Response(200, json={})}
    answers, _, _ = run(lambda asked: refuse[b"NaN" in asked.content], 2, body)
    assert answers == {("0", 400): 1, ("1", 400): 1}


@pytest.mark.parametrize("status", [500, 504, 408])
def test_a_servers_error_is_an_answer_at_its_third_time(status: int) -> None:
    """Also that the request's own time was too short, as it may always be; nothing else is sent later."""
    answers, sending, seconds = run(Server(1, [status] * 4).answer, 1)
    assert answers == {("0", status): 1}
    assert seconds < 5
    assert sending.room.total_tokens > 1


def test_it_gives_up_on_a_server_that_is_away() -> None:
    """Not while an answer is under way, however long that takes behind others."""
    _, sending, seconds = run(lambda _: httpx.Response(503, json={"error": {"message": "draining"}}), 2)
    assert sending.gave_up == "503: draining"
    assert 600 < seconds < 800


class _FullDisk(io.BytesIO):
    name = "out.jsonl"

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_it_ends_when_the_disk_has_no_room_for_an_answer() -> None:
    _, sending, _ = run(Server(8, []).answer, 100, answers=_FullDisk())
    assert sending.gave_up == "out.jsonl cannot be written: No space left on device"
    assert not sending.statuses
