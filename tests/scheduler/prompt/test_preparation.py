"""Prompts as token ids, and their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import InvalidRequest, PromptTooLong, TemplateFailed
from scheduler.prompt.model_folder import ModelFolder
from scheduler.prompt.preparation import MOST_BOUNDARIES, Preparation, boundaries_of
from scheduler.request import ChatPrompt, GenerationRequest, Hold, Sampling, TextPrompt, TokenPrompt
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.scheduling import ask

FRAME = len("<user>\n<assistant>")
"""The tokens of the fake template around one question."""


def prepare_in(context: int, request: GenerationRequest) -> tuple[int, int]:
    """Prompt tokens and max_tokens in a model with this context."""
    prepared = Preparation(ByteTokenizer(), folder(context)).prepare(request)
    return len(prepared.submit.prompt), prepared.submit.max_tokens


def folder(context: int = 100) -> ModelFolder:
    return ModelFolder(Path("none"), vocabulary=8192, context_tokens=context, eos_token_ids=frozenset({7, 8}))


@settings(deadline=None)
@given(words=st.integers(0, 40), room=st.integers(-8, 8), max_tokens=st.none() | st.integers(1, 8))
def test_prompt_and_answer_fit_the_context_or_are_refused(
    words: int, room: int, max_tokens: int | None
) -> None:
    """Exactly up to the bound; without max_tokens the answer gets the room that is left."""
    request = ask("x" * words, max_tokens=max_tokens)
    prompt = FRAME + words
    context = prompt + room
    if room < (max_tokens or 1):
        with pytest.raises(
            PromptTooLong, match=rf"\b{context} tokens\b.*\b{prompt} input tokens\b"
        ) as caught:
            prepare_in(context, request)
        assert caught.value.param == ("messages" if room < 1 else "max_tokens")
    else:
        assert prepare_in(context, request) == (prompt, max_tokens or room)


class Counting(ByteTokenizer):
    """Counts the characters that it is given."""

    read = 0

    def encode(self, text: str) -> list[int]:
        self.read += len(text)
        return super().encode(text)


_LONG = "x" * 1_000_000


@pytest.mark.parametrize("prompt", [TextPrompt(_LONG), ask(_LONG).prompt], ids=["text", "chat"])
def test_of_a_prompt_that_cannot_fit_no_more_is_tokenized_than_shows_it(
    prompt: TextPrompt | ChatPrompt,
) -> None:
    """Megabytes of text would take a hundred times their memory."""
    tokenizer = Counting()
    preparation = Preparation(tokenizer, folder(context=100))
    tokenizer.read = 0
    with pytest.raises(
        PromptTooLong, match=r"context length is 100 tokens\..* at least \d+ input tokens"
    ) as caught:
        preparation.prepare(GenerationRequest("test", prompt))
    assert 100 <= caught.value.prompt_tokens <= len(_LONG)
    assert tokenizer.read <= 10_200


def test_a_prompt_that_fits_is_not_refused_however_long_its_tokens_are() -> None:
    """Ten million spaces may be one token."""

    class Joining(ByteTokenizer):
        cuts: Mapping[str, int] = {}

        def encode(self, text: str) -> list[int]:
            return super().encode(" " * bool(text.count(" ")) + text.replace(" ", ""))

    request = GenerationRequest("test", TextPrompt(" " * 1_000_000 + "x"))
    for context in (20, 200_000):
        assert Preparation(Joining(), folder(context)).prepare(request).submit.prompt.tolist() == [*b" x"]


def test_a_token_outside_of_the_vocabulary_is_refused_by_its_parameter() -> None:
    """In the engine it would break the step for all rows. Where no configuration has a vocabulary (mlx-lm has
    defaults for many architectures) the tokenizer's counts."""
    preparation = Preparation(ByteTokenizer(), replace(folder(), vocabulary=0))
    for token, accepted in ((-1, False), (0, True), (8191, True), (8192, False)):
        request = replace(ask(), sampling=Sampling(logit_bias=((5, 1.0), (token, 1.0))))
        if accepted:
            assert preparation.prepare(request).submit.sampling == request.sampling
            assert preparation.tokenize(TokenPrompt((token,))).tolist() == [token]
            continue
        with pytest.raises(InvalidRequest, match=f"token {token},.* 8192") as caught:
            preparation.prepare(request)
        assert caught.value.param == "logit_bias"
        with pytest.raises(InvalidRequest, match="outside the vocabulary of 8192"):
            preparation.tokenize(TokenPrompt((token,)))
    assert preparation.detokenize([65], "tokens") == "A"


def test_more_tokens_than_can_come_cannot_be_the_least() -> None:
    """Compared with max_tokens, or with the room in the context without it."""
    preparation = Preparation(ByteTokenizer(), folder())
    assert preparation.prepare(replace(ask(), max_tokens=5, min_tokens=5)).submit.max_tokens == 5
    for max_tokens, most in (
        (5, 5),
        (None, preparation.prepare(replace(ask(), max_tokens=None)).submit.max_tokens),
    ):
        with pytest.raises(InvalidRequest, match=f"min_tokens is {most + 1},.* {most} ") as caught:
            preparation.prepare(replace(ask(), max_tokens=max_tokens, min_tokens=most + 1))
        assert caught.value.param == "min_tokens"


def test_an_empty_prompt_is_refused() -> None:
    """An engine cannot continue an empty prompt."""

    class Silent(ByteTokenizer):
        def encode(self, text: str) -> list[int]:
            return []

    request = GenerationRequest("test", ChatPrompt(({"role": "user", "content": ""},)))
    with pytest.raises(InvalidRequest, match="empty"):
        Preparation(Silent(), folder()).prepare(request)


_SPECIAL = frozenset({0, 1, 2})


@settings(deadline=None)
@given(tokens=st.lists(st.integers(0, 6), max_size=900))
def test_boundaries_are_few_ordered_and_inside(tokens: list[int]) -> None:
    """Whatever the tokens are; and those of a prompt that goes on begin with the same."""
    found = boundaries_of(tokens, _SPECIAL)
    assert list(found) == sorted(set(found))
    assert len(found) <= MOST_BOUNDARIES
    assert all(0 < position < len(tokens) and tokens[position] in _SPECIAL for position in found)
    longer = boundaries_of([*tokens, 5, 1], _SPECIAL)
    assert longer[-1] == len(tokens) + 1
    if len(found) < MOST_BOUNDARIES:
        assert set(found) <= set(longer)


def test_a_hold_is_for_what_its_messages_render_to() -> None:
    """Up to the end of that message; of all of them the whole prompt; of the first, if it is the system's,
    the system prompt; and of a part that no template takes, all of it."""

    class Picky(ByteTokenizer):
        def render(self, prompt: ChatPrompt) -> str:
            if prompt.messages[-1]["content"] == "no":
                raise TemplateFailed("a user's message must be last", param="messages")
            return super().render(prompt)

    messages = tuple({"role": "user", "content": text} for text in ("one", "two", "no", "four"))
    wishes = (Hold(1, 300.0), Hold(2, 3600.0), Hold(3, 1.0), Hold(None, 2.0), Hold(9, 3.0))
    request = replace(ask(), prompt=ChatPrompt(messages), holds=wishes)
    prepared = Preparation(Picky(), folder(1000)).prepare(request)
    whole = len(prepared.submit.prompt)
    one = len("<user>one\n<")  # The generation prompt's mark begins like the next message's.
    assert prepared.submit.holds == (
        (one, 300.0),
        (one + len("user>two\n<"), 3600.0),
        (whole, 1.0),
        (whole, 2.0),
        (whole, 3.0),
    )
    system = ({"role": "system", "content": "s"}, *messages)
    request = replace(ask(), prompt=ChatPrompt(system), holds=(Hold(1, 300.0),))
    prepared = Preparation(Picky(), folder(1000)).prepare(request)
    assert prepared.submit.holds[0][0] in (prepared.submit.system_tokens, len("<system>s\n<"))
