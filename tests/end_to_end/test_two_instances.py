"""Two instances behind a balancer that uses only `/ready`, statuses and `Retry-After`."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import trio

from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import Served, serving, start

PLAN = ("--engine", "scripted", "--scripted", "step_seconds=0.01")


@dataclass
class Balancer:
    """Polls both instances' readiness every 50 ms; each request goes to the next that is ready."""

    instances: list[Served]
    ready: list[bool] = field(default_factory=lambda: [True, True])
    sent: list[int] = field(default_factory=lambda: [0, 0])
    turn: count[int] = field(default_factory=count)

    async def watch(self) -> None:
        async with httpx.AsyncClient(timeout=5.0) as http:
            while True:
                for number, instance in enumerate(self.instances):
                    try:
                        answer = await http.get(f"{instance.url}/ready")
                    except httpx.TransportError:
                        self.ready[number] = False
                    else:
                        self.ready[number] = answer.status_code == 200
                        assert answer.status_code == 200 or int(answer.headers["retry-after"]) >= 1
                await trio.sleep(0.05)

    async def sees(self, ready: bool) -> None:
        """Wait until the first instance reports this; the other is ready all the time."""
        with trio.fail_after(30):
            while self.ready[0] is not ready:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert self.ready[1]

    async def ask(self, text: str, **fields: Any) -> Answer:
        """Send a request; retry if an instance refused before it began, as balancers do; never after that."""
        while True:
            number = next(self.turn) % 2
            if not self.ready[number] and any(self.ready):
                continue
            self.sent[number] += 1
            answer = await ask(self.instances[number].port, text, **fields)
            if answer.status != 503:
                return answer
            await trio.sleep(0.05)


def test_a_death_and_a_drain_behind_a_balancer_lose_nothing() -> None:
    """One engine is killed, then its instance is drained: 60 requests, 60 answers. Requests in it stay, new
    ones go to the other."""
    with start(*PLAN) as going, serving(*PLAN) as staying:
        answers: list[Answer] = []
        balancer = Balancer([going, staying])

        async def one(number: int) -> None:
            answers.append(await balancer.ask(f"client {number}", max_tokens=20 + number))

        async def come(nursery: trio.Nursery, numbers: range) -> None:
            for number in numbers:
                nursery.start_soon(one, number)
                await trio.sleep(0.02)

        async def main() -> None:
            async with trio.open_nursery() as watching:
                watching.start_soon(balancer.watch)
                async with trio.open_nursery() as people:
                    await come(people, range(20))
                    os.kill(going.engine_pid(), signal.SIGKILL)
                    await balancer.sees(False)
                    before = balancer.sent[0]
                    await come(people, range(20, 30))
                    assert balancer.sent[0] == before or balancer.ready[0]
                    await balancer.sees(True)
                    await come(people, range(30, 40))
                    assert balancer.sent[0] > before
                    going.process.send_signal(signal.SIGTERM)
                    await balancer.sees(False)
                    drained = balancer.sent[0]
                    await come(people, range(40, 60))
                    assert balancer.sent[0] == drained
                watching.cancel_scope.cancel()

        trio.run(main)
        assert going.process.wait(60) == 0
    assert [answer.status for answer in answers] == [200] * 60
    assert all(answer.errors == [] and answer.finish_reason == "length" for answer in answers)


def test_a_client_that_comes_back_after_retry_after_is_taken() -> None:
    """A full queue names a time; clients that wait this long are served at their next try or the one after
    it: the drain rate is an estimate."""
    options = (*PLAN, "--max-slots", "2", "--max-queue", "6")
    with serving(*options) as served:
        tries: list[int] = []

        async def patient(number: int) -> None:
            body = {"messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 40}
            async with httpx.AsyncClient(timeout=60.0) as http:
                for attempt in count(1):
                    answer = await http.post(f"{served.url}/v1/chat/completions", json=body)
                    if answer.status_code == 200:
                        tries.append(attempt)
                        return
                    assert answer.status_code == 503
                    await trio.sleep(int(answer.headers["retry-after"]))

        async def crowd() -> None:
            async with trio.open_nursery() as nursery:
                # Enough departures that the rate is known.
                for number in range(10):
                    nursery.start_soon(patient, number)
            tries.clear()
            async with trio.open_nursery() as nursery:
                for number in range(24):
                    nursery.start_soon(patient, number)

        trio.run(crowd)
        assert len(tries) == 24
        assert max(tries) > 1, "nobody was refused"
        assert sum(tries) <= 2.5 * len(tries), tries
