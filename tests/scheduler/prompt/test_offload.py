"""The lane of a request's preparation, with and without a call of the real grammar library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio

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
