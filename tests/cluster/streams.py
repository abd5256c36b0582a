"""Sixteen streams over a cluster, and whether they are what nobody disturbed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import Served, eventually

STREAMS = 16


async def ask_all(served: Served, disturb: Callable[[], None] | None = None) -> list[Answer]:
    """All at once, every second one greedy and the others sampled; `disturb` is called when tokens flow."""
    found = [Answer()] * STREAMS
    before = served.metric("penstock_generated_tokens_total")

    async def one(number: int) -> None:
        sampled = {"temperature": 0.9, "top_p": 0.95, "seed": 40 + number} if number % 2 else {}
        fields: dict[str, Any] = {"max_tokens": 100 + 4 * number, "ignore_eos": True, **sampled}
        found[number] = await ask(served.port, f"agent {number} " * (number + 1), **fields)

    async with trio.open_nursery() as nursery:
        for number in range(STREAMS):
            nursery.start_soon(one, number)
        if disturb is not None:
            flowing = partial(
                eventually,
                lambda: served.metric("penstock_generated_tokens_total") >= before + 10 * STREAMS,
            )
            await trio.to_thread.run_sync(flowing)
            await trio.to_thread.run_sync(disturb)
    return found


def check_whole(answers: list[Answer], undisturbed: list[Answer]) -> None:
    """Every stream is the undisturbed one, to the byte, and ends once."""
    for number, (answer, expected) in enumerate(zip(answers, undisturbed, strict=True)):
        assert (answer.status, answer.errors) == (200, []), f"stream {number}"
        assert answer.text == expected.text, f"stream {number}"
        assert answer.finish_reason == expected.finish_reason
        assert answer.events.count("[DONE]") == 1
