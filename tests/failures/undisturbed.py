"""What a request would have got had no engine died: the measure of every recovery."""

from __future__ import annotations

from scheduler.events import Finished
from scheduler.link.messages import ScriptedPlan
from scheduler.request import GenerationRequest
from tests.cancellation.bench import Client
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running


async def undisturbed(request: GenerationRequest, plan: ScriptedPlan) -> Client:
    """A client that has had its answer from a healthy engine of its own."""
    client = Client(request)
    scheduler = make_scheduler(LoopbackLauncher(), plan)
    async with running(scheduler):
        await client.follow(scheduler)
    return client


async def check_undisturbed(client: Client, plan: ScriptedPlan) -> None:
    """It got that, to the letter and to the log-probability, and one final event, which was its last."""
    healthy = await undisturbed(client.request, plan)
    [expected] = healthy.finals
    [final] = client.finals
    assert isinstance(expected, Finished)
    assert isinstance(final, Finished), final
    assert client.text == healthy.text
    assert client.logprobs == healthy.logprobs
    assert (final.reason, final.stop_string) == (expected.reason, expected.stop_string)
    assert final.usage.output_tokens == expected.usage.output_tokens
    assert client.events[-1] is final
