"""An engine dies in the middle of reasoning or of a tool call, and the client gets the same call, once."""

from __future__ import annotations

import pytest
from trio.testing import MockClock, trio_test

from scheduler.config import RecoveryConfig
from scheduler.events import Failed, Finished, FinishReason, Prefilling, Queued
from scheduler.request import ChatPrompt, GenerationRequest, Sampling
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Client
from tests.failures.repeated_deaths import STEP_SECONDS, SUPERVISION, follow_through_deaths
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler
from tests.scheduler.answer.notations import TOOLS, WRITTEN, Message, Written

PATIENT = RecoveryConfig(max_request_deaths=1000, max_engine_deaths=1000)
CALLING = [written for written in WRITTEN if written.calls and not written.in_reasoning]


def asked() -> GenerationRequest:
    prompt = ChatPrompt(({"role": "user", "content": "call"},), tools=TOOLS)
    return GenerationRequest("call", prompt, Sampling(temperature=0.0), max_tokens=2000)


async def followed(written: Written, lives_tokens: int | None) -> tuple[Message, int]:
    """The message of engines that say this and die after every `lives_tokens` tokens; how many it took."""
    launcher = Playback(written.raw)
    scheduler = make_scheduler(
        launcher,
        ScriptedPlan(step_seconds=STEP_SECONDS),
        answer_format=written.form,
        recovery=PATIENT,
        supervision=SUPERVISION,
    )
    client = Client(asked())
    await follow_through_deaths(client, scheduler, launcher, lives_tokens)
    message = Message()
    for event in client.events:
        if not isinstance(event, Queued | Prefilling | Finished | Failed):
            message.add(event)
    [final] = client.finals
    assert isinstance(final, Finished), final
    assert final.reason is FinishReason.TOOL_CALLS
    return message, launcher.starts


@pytest.mark.parametrize("written", CALLING, ids=[written.name for written in CALLING])
@trio_test
async def test_in_every_dialect_the_call_is_the_same_wherever_engines_die(
    written: Written, autojump_clock: MockClock
) -> None:
    """After every few tokens: in its mark, its name, its arguments, and in the reasoning before it."""
    whole, one = await followed(written, lives_tokens=None)
    resumed, engines = await followed(written, lives_tokens=5)
    assert one == 1
    assert engines > 2
    assert (resumed.text, resumed.reasoning, resumed.calls) == (whole.text, whole.reasoning, whole.calls)
    assert whole.calls == written.calls
