"""What a request would have got had no engine died: the measure of every recovery."""

from __future__ import annotations

from scheduler.events import Finished
from scheduler.link.messages import ScriptedPlan
from scheduler.request import GenerationRequest
from tests.cancellation.bench import Client
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, make_scheduler, running


async def undisturbed(request: GenerationRequest, plan: ScriptedPlan) -> tuple[str, Finished]:
    """Its answer on a healthy engine of its own."""
    scheduler = make_scheduler(LoopbackLauncher(), plan)
    async with running(scheduler):
        text, final = await answer(scheduler, request)
    assert isinstance(final, Finished)
    return text, final


async def check_undisturbed(client: Client, plan: ScriptedPlan) -> None:
    """It got that, to the letter, and one final event, which was its last."""
    text, expected = await undisturbed(client.request, plan)
    [final] = client.finals
    assert isinstance(final, Finished), final
    assert client.text == text
    assert (final.reason, final.stop_string) == (expected.reason, expected.stop_string)
    assert final.usage.output_tokens == expected.usage.output_tokens
    assert client.events[-1] is final
