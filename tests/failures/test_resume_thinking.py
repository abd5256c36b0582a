"""An engine dies in the middle of reasoning that has a budget, and the budget is as long as it was."""

from __future__ import annotations

import pytest
from trio.testing import MockClock, trio_test

from scheduler.events import Finished
from scheduler.request import Reasoning
from scheduler.structure import JsonText
from tests.failures.test_resume_structured import SCHEMA, outcome_of
from tests.scheduler.engine.mlx.grammar_engine import GrammarModel, asked
from tests.scheduler.engine.mlx.test_thinking_grammars import thinks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GrammarModel:
    return GrammarModel(tmp_path_factory.mktemp("models") / "grammar")


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["free", "held to a schema"])
@trio_test
async def test_it_is_the_same_wherever_engines_die(
    schema: dict[str, object] | None, model: GrammarModel, autojump_clock: MockClock
) -> None:
    """Within reasoning, at its forced end and after it: the same text, and the same count of reasoning."""
    structure = None if schema is None else JsonText(schema, "response_format")
    request = thinks(model, asked(structure, 5, 60, reasoning=Reasoning(enabled=True)), 9)
    whole = await outcome_of(model, request)
    resumed = await outcome_of(model, request, 5)
    assert whole.engines == 1
    assert resumed.engines > 4
    assert resumed.text == whole.text
    assert isinstance(whole.final, Finished)
    assert resumed.final.usage == whole.final.usage
    assert whole.final.usage.reasoning_tokens == 9
