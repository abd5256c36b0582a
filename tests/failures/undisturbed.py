"""What a request would have got from an engine that does not die: the reference for every recovery."""

from __future__ import annotations

from scheduler.events import Finished
from scheduler.request import GenerationRequest
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Client
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running


async def undisturbed(request: GenerationRequest, plan: ScriptedPlan) -> Client:
    """Return a client that has its answer from a healthy engine of its own."""
    client = Client(request)
    scheduler = make_scheduler(LoopbackLauncher(), plan)
    async with running(scheduler):
        await client.follow(scheduler)
    return client


async def check_undisturbed(client: Client, plan: ScriptedPlan) -> None:
    """Check that it got the same text and log-probabilities, and one final event, which was its last."""
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
