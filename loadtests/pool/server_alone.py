"""The server without HTTP: what a streamed token costs it, by the number of engines.

The engines are simulated (`simulation.py`), so that 16 of them need neither machines nor cores. All of this
thread's processor time but the engines' own is the server's: reading frames, routing, text, events, readers,
placement. HTTP is not in it: `scale.py` measures the whole server.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from loadtests.pool.simulation import SimulatedServer, Timing, prepared, running_server, simulated
from scheduler.events import Finished
from scheduler.prompt.preparation import Preparation
from scheduler.request import GenerationRequest, TokenPrompt

LEAST_OF_LINEAR = 0.95
MOST_GROWTH = 1.25
"""How much more a token may cost with the most engines than with the fewest."""
TIMING = Timing(step_seconds=0.25)
_OUTPUT_TOKENS = 64
_PROMPT_TOKENS = 32
_WARM_UP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """What to measure, for `seconds` of simulated time."""

    engines: tuple[int, ...] = (1, 4, 16)
    slots: int = 8
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class ServerCost:
    """`tokens` in `seconds` of simulated time, for `cpu_seconds` of the server."""

    engines: int
    tokens: int
    seconds: float
    cpu_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens/s in simulated time, which shows whether the engines were kept busy."""
        return self.tokens / self.seconds

    @property
    def cpu_seconds_per_token(self) -> float:
        return self.cpu_seconds / self.tokens


def run(plan: ServerPlan, note: Callable[[str], None]) -> list[ServerCost]:
    """Return the cost with each number of engines."""
    preparation, found = prepared(), []
    for engines in plan.engines:
        one = simulated(partial(_cost, plan, preparation, engines))
        found.append(one)
        note(f"simulated engines {engines}: {1e6 * one.cpu_seconds_per_token:.0f} µs of the server a token")
    return found


def complaints(found: Sequence[ServerCost]) -> Iterator[str]:
    """Yield what does not hold from the fewest engines to the most."""
    fewest, most = min(found, key=_engines), max(found, key=_engines)
    linear = fewest.tokens_per_second * most.engines / fewest.engines
    if most.tokens_per_second < LEAST_OF_LINEAR * linear:
        yield (
            f"{most.engines} simulated engines were not kept busy: {most.tokens_per_second:.0f} tokens/s of"
            f" {linear:.0f}"
        )
    if most.cpu_seconds_per_token > MOST_GROWTH * fewest.cpu_seconds_per_token:
        growth = most.cpu_seconds_per_token / fewest.cpu_seconds_per_token
        yield (
            f"a token costs the server {growth:.2f} times as much with {most.engines} engines as with"
            f" {fewest.engines}"
        )


def _engines(cost: ServerCost) -> int:
    return cost.engines


async def _cost(plan: ServerPlan, preparation: Preparation, engines: int) -> ServerCost:
    async with (
        running_server(preparation, TIMING, plan.slots, engines=engines) as running,
        trio.open_nursery() as nursery,
    ):
        for number in range(engines * plan.slots):
            nursery.start_soon(_client, running, number)
        launcher = running.engines
        await trio.sleep(_WARM_UP_SECONDS)
        gc.collect()
        tokens, spent = launcher.tokens, time.thread_time() - launcher.cpu_seconds
        await trio.sleep(plan.seconds)
        tokens, spent = launcher.tokens - tokens, time.thread_time() - launcher.cpu_seconds - spent
        nursery.cancel_scope.cancel()
    return ServerCost(engines, tokens, plan.seconds, spent)


async def _client(running: SimulatedServer, number: int) -> None:
    """Send one prompt after another. Answers differ in length, so that rows end at different steps."""
    turn = 0
    while True:
        request = GenerationRequest(
            f"client-{number}-{turn}",
            TokenPrompt((300 + number, 300 + turn % 1000) * (_PROMPT_TOKENS // 2)),
            max_tokens=_OUTPUT_TOKENS // 2 + (7 * number + 11 * turn) % _OUTPUT_TOKENS,
            ignore_eos=True,
        )
        async with running.scheduler.stream(request) as stream:
            async for event in stream:
                assert not isinstance(event, Finished) or event.usage.output_tokens
        turn += 1
