"""The scheduler as a whole, in one process and in virtual time."""

from __future__ import annotations

import trio
import trio.testing
from trio.testing import trio_test

from scheduler.events import Finished, FinishReason
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running


@trio_test
async def test_an_answer_is_its_tokens_and_one_finish(autojump_clock: trio.testing.MockClock) -> None:
    """The text of eight scripted tokens, then Finished with the counts."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler):
        text, final = await answer(scheduler, ask(max_tokens=8))
    assert len(text.split()) == 8
    assert isinstance(final, Finished)
    assert final.reason is FinishReason.LENGTH
    assert final.usage.output_tokens == 8
