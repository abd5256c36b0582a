"""Drafts that were rejected, and those of a grammar: the tokens are those of a run without.

In any company, with any parameters, preempted or after a death: `zoo/test_meetings.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from scheduler.engine.loop import EngineLoop
from scheduler.engine.planning.pace import PrefillPace
from scheduler.request import GenerationRequest, Tool, ToolChoice
from scheduler.shared.messages import Submit
from tests.contracts.journal import prefixes_of
from tests.scheduler.engine.guesses import Guesses, eager
from tests.scheduler.engine.mlx.grammar_engine import PERSON, Answer, GrammarModel, asked
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words
from tests.scheduler.engine.mlx.test_thinking_grammars import person
from tests.scheduler.engine.prefix.integrity import check_integrity


def guessing(engine: ReuseEngine, submits: Iterable[Submit]) -> ReuseEngine:
    """The engine drafts what these requests are answered alone, mostly right."""
    slots, guesses = 8, Guesses({one.request_id: engine.alone(one) for one in submits})
    engine.loop = EngineLoop(engine.backend, slots, PrefillPace(8), speculation=guesses)
    return engine


def test_the_second_turn_finds_accepted_tokens_only() -> None:
    """What was drafted and rejected is in no cached prefix: a prompt that goes on behind an answer has the
    tokens that it has alone."""
    engine = engine_of("qwen3")
    firsts = [engine.submit(words(20, number), max_tokens=20) for number in range(3)]
    guessing(engine, firsts).ask(*firsts)
    seconds = [
        engine.submit([*one.prompt, *engine.heard[one.request_id].tokens, *words(5, 70 + at)], max_tokens=20)
        for at, one in enumerate(firsts)
    ]
    heard = guessing(engine, seconds).ask(*seconds)
    # The last token of an answer is never computed.
    assert [one.cached for one in heard] == [39] * 3
    check_integrity(prefixes_of(engine.backend))


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
