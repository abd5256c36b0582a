"""An engine dies in the middle of a constrained answer, and the client gets the same bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.config import RecoveryConfig, SupervisionConfig
from scheduler.events import Finished, FinishReason, TextDelta, ToolCallArguments, ToolCallStarted
from scheduler.request import GenerationRequest, Sampling, Tool, ToolChoice
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from scheduler.structure import JsonText
from tests.cancellation.bench import Client
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running
from tests.scheduler.engine.mlx.grammar_engine import GrammarModel, asked

STEP_SECONDS = 0.01
"""The engine's step, and the pause between two looks at the answer's length."""
SUPERVISION = SupervisionConfig(backoff_limit_seconds=0.1)
"""The next engine comes as soon after many deaths as after one."""
PATIENT = RecoveryConfig(max_request_deaths=1000, max_engine_deaths=1000)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 5, "maxLength": 30},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 3, "maxItems": 6},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
JSON = asked(JsonText(SCHEMA, "response_format"), 3, 400)
CALL = asked(
    None, 4, 400, tools=(Tool("note", parameters=SCHEMA),), tool_choice=ToolChoice.REQUIRED, only_tool="note"
)
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GrammarModel:
    return GrammarModel(tmp_path_factory.mktemp("models") / "grammar")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client has in the end: its text, or the arguments of its only call."""

    text: str
    arguments: str
    final: Finished
    engines: int


async def follow_through_deaths(
    client: Client, scheduler: Scheduler, launcher: LoopbackLauncher, lives_tokens: int | None
) -> None:
    """Run `client` to its end; kill the engine after every `lives_tokens` tokens, or never."""
    async with running(scheduler) as nursery:
        nursery.start_soon(client.follow, scheduler)
        await trio.testing.wait_all_tasks_blocked()
        killed_at = 0
        while not client.finals:
            await trio.sleep(STEP_SECONDS)
            tokens = next((record.output_tokens for record in scheduler.pool.records), 0)
            if lives_tokens is not None and tokens >= killed_at + lives_tokens:
                killed_at = tokens
                launcher.kill()
                await trio.testing.wait_all_tasks_blocked()
                await scheduler.wait_ready()
        await scheduler.wait_idle()


async def outcome_of(
    model: GrammarModel, request: GenerationRequest, lives_tokens: int | None = None
) -> Outcome:
    """Return the outcome on engines with a real model, each of which dies after `lives_tokens` tokens."""
    launcher = LoopbackLauncher(model.backend)
    scheduler = make_scheduler(
        launcher,
        ScriptedPlan(step_seconds=STEP_SECONDS),
        preparation=model.preparation,
        recovery=PATIENT,
        supervision=SUPERVISION,
        # Grammars are compiled on the real clock, beside which this one runs away.
        stall_seconds=1e6,
    )
    client = Client(request)
    await follow_through_deaths(client, scheduler, launcher, lives_tokens)
    assert client.refusal is None
    [final] = client.finals
    assert isinstance(final, Finished), final
    assert sum(isinstance(event, ToolCallStarted) for event in client.events) <= 1
    written = [event.text for event in client.events if isinstance(event, ToolCallArguments)]
    text = [event.text for event in client.events if isinstance(event, TextDelta)]
    return Outcome("".join(text), "".join(written), final, launcher.starts)


@pytest.mark.parametrize(
    "request_", [JSON, replace(JSON, sampling=GREEDY), CALL], ids=["sampled", "greedy", "forced call"]
)
@trio_test
async def test_it_is_the_same_wherever_engines_die(
    request_: GenerationRequest, model: GrammarModel, autojump_clock: MockClock
) -> None:
    """Each engine begins where the last one stopped in its grammar: in a name, a string, between brackets."""
    whole = await outcome_of(model, request_)
    assert whole.engines == 1
    ended = FinishReason.STOP if request_.structure else FinishReason.TOOL_CALLS
    assert whole.final.reason is ended
    jsonschema.validate(json.loads(whole.text or whole.arguments), SCHEMA)
    for lives_tokens in (7, 20):
        resumed = await outcome_of(model, request_, lives_tokens)
        assert resumed.engines > 2
        assert (resumed.text, resumed.arguments) == (whole.text, whole.arguments)
        assert resumed.final.reason is whole.final.reason
        assert resumed.final.usage.output_tokens == whole.final.usage.output_tokens
