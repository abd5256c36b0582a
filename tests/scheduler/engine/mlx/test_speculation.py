"""Drafts that come from a prediction, a grammar or an adapter's row: the tokens are those of a run without.

In any company, with any parameters, preempted or after a death: `zoo/test_meetings.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec
import pytest

from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.request import GenerationRequest, Tool, ToolChoice
from scheduler.shared.messages import Submit
from scheduler.shared.token_ids import compact
from tests.contracts.journal import prefixes_of
from tests.scheduler.engine.guesses import eager, spoilt
from tests.scheduler.engine.mlx.grammar_engine import PERSON, Answer, GrammarModel, asked
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words
from tests.scheduler.engine.mlx.test_thinking_grammars import person


def predicted(submits: Iterable[Submit], answers: Mapping[int, Sequence[int]]) -> list[Submit]:
    """Return the same requests with predictions that are mostly right."""
    return [
        msgspec.structs.replace(one, prediction=compact(spoilt(answers[one.request_id], one.request_id)))
        for one in submits
    ]


def speculating(engine: ReuseEngine, speculation: Speculation) -> ReuseEngine:
    slots = 8
    engine.loop = EngineLoop(engine.backend, slots, PrefillPace(8), speculation=speculation)
    return engine


def test_the_second_turn_finds_accepted_tokens_only() -> None:
    """What was drafted and rejected is in no cached prefix: a prompt that goes on behind an answer has the
    tokens that it has alone."""
    engine = speculating(engine_of("qwen3"), eager())
    firsts = [engine.submit(words(20, number), max_tokens=20) for number in range(3)]
    engine.ask(*predicted(firsts, {one.request_id: engine.alone(one) for one in firsts}))
    seconds = [
        engine.submit([*one.prompt, *engine.heard[one.request_id].tokens, *words(5, 70 + at)], max_tokens=20)
        for at, one in enumerate(firsts)
    ]
    heard = engine.ask(*predicted(seconds, {one.request_id: engine.alone(one) for one in seconds}))
    # The last token of an answer is never computed.
    assert [one.cached for one in heard] == [39] * 3
    assert not prefixes_of(engine.backend).check_integrity()


_WRITE = Tool(
    "write_the_file",
    parameters={
        "type": "object",
        "properties": {"path_of_file": {"type": "string", "maxLength": 9}, "is_new": {"type": "boolean"}},
        "required": ["path_of_file", "is_new"],
        "additionalProperties": False,
    },
)


def _check_equal(found: Sequence[Answer], plain: Sequence[Answer]) -> None:
    """A call of several tokens a row sums in another order than one of a single token."""
    for mine, other in zip(found, plain, strict=True):
        assert (mine.tokens, mine.retired) == (other.tokens, other.retired)
        chosen = [one.chosen for one in other.logprobs]
        assert [one.chosen for one in mine.logprobs] == pytest.approx(chosen, abs=2e-5)


@pytest.mark.parametrize("kind", ["schema", "call", "thinking"])
def test_what_a_grammar_forces_is_drafted_and_changes_nothing(model: GrammarModel, kind: str) -> None:
    """JSON keys, the envelope of a call, and what follows a forced end of reasoning: the tokens of the run
    without drafts, in fewer steps. Drafts are the canonical tokens of the text so far, which a random model
    need not write: some are rejected, and some accepted."""
    made: dict[str, Callable[[int], GenerationRequest]] = {
        "schema": lambda seed: asked(PERSON, seed, 400),
        "call": lambda seed: asked(None, seed, 400, tools=(_WRITE,), tool_choice=ToolChoice.REQUIRED),
        "thinking": lambda seed: person(model, seed, seed),
    }
    requests = [replace(made[kind](seed), top_logprobs=1) for seed in range(6)]
    plain, drafting, speculation = model.engine(), model.engine(), eager()
    drafting.loop = EngineLoop(drafting.backend, 32, PrefillPace(256), speculation=speculation)
    _check_equal(drafting.run(*requests), plain.run(*requests))
    proposed, accepted = speculation.counters.sources["grammar"]
    assert 0 < accepted <= proposed
    # A batch lasts as long as its longest answer, of which reasoning forces little.
    assert drafting.steps < plain.steps or kind == "thinking"
