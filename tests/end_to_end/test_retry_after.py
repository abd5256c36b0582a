"""`Retry-After` of a full queue, as a client without other knowledge takes it."""

from __future__ import annotations

from itertools import count

import httpx
import trio

from tests.end_to_end.serving import serving


def test_a_client_that_comes_back_after_retry_after_is_taken() -> None:
    """A full queue names a time; clients that wait this long are served at their next try or the one after
    it: the drain rate is an estimate."""
    options = ("--scripted", "step_seconds=0.01", "--max-slots", "2", "--max-queue", "6")
    with serving("--engine", "scripted", *options) as served:
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
