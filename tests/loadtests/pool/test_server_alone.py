"""The server behind simulated engines: on the virtual clock, so that what they give is exact."""

from __future__ import annotations

from functools import partial

import pytest

from loadtests.pool.server_alone import ServerPlan, complaints, run
from loadtests.pool.simulation import Timing, prepared, running_server, simulated
from scheduler.events import Finished
from scheduler.prompt.preparation import Preparation
from scheduler.request import GenerationRequest, TokenPrompt


@pytest.fixture(scope="module")
def preparation() -> Preparation:
    return prepared()


async def finished(running_with: Preparation, timing: Timing, *prompts: tuple[int, ...]) -> list[Finished]:
    """What a server with one engine says at the end of each answer, one prompt after another."""
    found: list[Finished] = []
    async with running_server(running_with, timing, slots=2, engines=1) as running:
        for number, prompt in enumerate(prompts):
            request = GenerationRequest(str(number), TokenPrompt(prompt), max_tokens=10, ignore_eos=True)
            async with running.scheduler.stream(request) as stream:
                found += [event async for event in stream if isinstance(event, Finished)]
        assert running.engines.tokens == 10 * len(prompts)
        assert running.engines.cpu_seconds > 0
    return found


def test_engines_find_what_they_have_computed(preparation: Preparation) -> None:
    """A prompt that continues another one."""
    first = tuple(range(300, 700))
    ends = simulated(partial(finished, preparation, Timing(0.1), first, (*first, 299, 299)))
    assert [end.usage.cached_tokens for end in ends] == [0, 400]


def test_several_engines_give_as_many_times_the_tokens(preparation: Preparation) -> None:
    """In simulated time only waiting for the server could cost tokens; and the cost of a token does not grow
    with the engines in the report of the same run."""
    notes: list[str] = []
    found = run(ServerPlan(engines=(1, 4), slots=4, seconds=30.0), notes.append)
    assert [one.engines for one in found] == [1, 4]
    assert found[1].tokens_per_second >= 0.95 * 4 * found[0].tokens_per_second
    assert found[0].tokens_per_second <= 4 / 0.25
    assert all(one.cpu_seconds > 0 for one in found)
    assert not [complaint for complaint in complaints(found) if "busy" in complaint]
    assert len(notes) == len(found)
