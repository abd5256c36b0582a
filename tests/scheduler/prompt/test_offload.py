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
from scheduler.request import ChatPrompt, GenerationRequest, TextPrompt, TokenPrompt, Tool
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


def test_a_prompt_is_large_by_all_the_text_that_its_template_may_write() -> None:
    """Anywhere in the request; token ids are not text. Only a bounded number of values is looked at: the rest
    is counted in a thread."""
    large = (
        TextPrompt(TEXT + "x"),
        chat(HALF, HALF),
        chat([{"type": "text", "text": HALF}] * 2),
        chat(HALF, tools=(Tool("read", HALF),)),
        chat(HALF, template_options={"documents": [HALF]}),
        chat(template_options={"numbers": [0] * LARGE_CHARACTERS}),
    )
    small = TextPrompt(TEXT), TokenPrompt((1,) * (LARGE_CHARACTERS + 1)), chat(HALF)
    assert all(is_large(prompt) for prompt in large)
    assert not any(is_large(prompt) for prompt in small)
    many = chat(*["x"] * 10_000)
    assert (is_large(many, max_values=2048), is_large(many)) == (None, False)
    assert is_large(chat(HALF, HALF), max_values=2048) is True
