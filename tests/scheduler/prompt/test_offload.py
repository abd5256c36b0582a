"""The lane of a request's preparation, with and without a call of the real grammar library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import trio_test

from scheduler.errors import InvalidRequest
from scheduler.offload import Lane
from scheduler.prompt.offload import LARGE_CHARACTERS, PreparationOffLoop, is_large
from scheduler.prompt.preparation import Preparation
from scheduler.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt, Tool
from scheduler.structure import JsonText
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.scheduling import FOLDER, ask

_T = TypeVar("_T")


class Recorder:
    """Runs work in place, and records its lane."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Lane]] = []

    async def __call__(self, work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
        self.taken.append((tenant, lane))
        await trio.lowlevel.checkpoint()
        return work()


def asks_for(schema: Any) -> GenerationRequest:
    return ask(tenant="t", structure=JsonText(schema, "response_format"))


def off_loop() -> tuple[PreparationOffLoop, Recorder]:
    recorder = Recorder()
    return PreparationOffLoop(Preparation(ByteTokenizer(), FOLDER), recorder), recorder


@trio_test
async def test_only_an_unknown_grammar_takes_the_grammar_lane() -> None:
    """The second time its verdict is cached, also if it is an error."""
    preparation, recorder = off_loop()
    for schema, good in (({"type": "integer"}, True), ({"type": "nonsense"}, False)):
        for times in range(2):
            recorder.taken.clear()
            if good:
                assert (await preparation.prepare(asks_for(schema), "", "")).submit.grammar
            else:
                with pytest.raises(InvalidRequest):
                    await preparation.prepare(asks_for(schema), "", "")
            lanes = [lane for _, lane in recorder.taken]
            assert lanes == ([Lane.PLAIN] if times else [Lane.PLAIN, Lane.GRAMMAR])
            assert {tenant for tenant, _ in recorder.taken} == {"t"}


@trio_test
async def test_large_prompts_and_prompts_of_many_values_leave_the_plain_lane() -> None:
    """Many values are counted in a thread first."""
    preparation, recorder = off_loop()
    await preparation.prepare(ask("hello"), "", "")
    with pytest.raises(InvalidRequest):
        await preparation.prepare(ask("x" * (LARGE_CHARACTERS + 1)), "", "")
    assert [lane for _, lane in recorder.taken] == [Lane.PLAIN, Lane.LARGE]


TEXT = "x" * LARGE_CHARACTERS
HALF = TEXT[: LARGE_CHARACTERS // 2 + 1]


def chat(*contents: Any, **fields: Any) -> ChatPrompt:
    return ChatPrompt(tuple({"role": "user", "content": content} for content in contents), **fields)


@pytest.mark.parametrize(
    ("prompt", "large"),
    [
        pytest.param(TextPrompt(TEXT), False, id="a text"),
        pytest.param(TextPrompt(TEXT + "x"), True, id="a longer text"),
        pytest.param(TokenPrompt((1,) * (LARGE_CHARACTERS + 1)), False, id="tokens"),
        pytest.param(chat(HALF), False, id="a message"),
        pytest.param(chat(HALF, HALF), True, id="messages"),
        pytest.param(chat([{"type": "text", "text": HALF}] * 2), True, id="parts of a message"),
        pytest.param(chat(HALF, tools=(Tool("read", HALF),)), True, id="a tool"),
        pytest.param(chat(HALF, template_options={"documents": [HALF]}), True, id="documents"),
        pytest.param(chat(template_options={"numbers": [0] * LARGE_CHARACTERS}), True, id="many small ones"),
    ],
)
def test_a_prompt_is_large_by_all_the_text_that_its_template_may_write(prompt: Prompt, large: bool) -> None:
    """Anywhere in the request; token ids are not text."""
    assert is_large(prompt) == large


def test_only_a_bounded_number_of_values_is_looked_at() -> None:
    """The rest is counted in a thread."""
    many = chat(*["x"] * 10_000)
    assert is_large(many, max_values=2048) is None
    assert is_large(many) is False
    assert is_large(chat("x"), max_values=2048) is False
    assert is_large(chat(HALF, HALF), max_values=2048) is True
