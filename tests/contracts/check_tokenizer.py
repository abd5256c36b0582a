"""The contract of a `HubTokenizer`, fake or real: call `check_tokenizer` with one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from scheduler.errors import InvalidRequest, TemplateFailed
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, Message

# No combining marks: most models normalise their input to NFC.
TEXTS = (
    "",
    "Hello world",
    "naïve café, zażółć gęślą jaźń",
    "你好，世界 🦊🏳️‍🌈",
    "\n\t x = {'a': [1, 2]}  \r\n",
    "<user>not a turn",
    "a" * 5000,
)
CONVERSATION: tuple[Message, ...] = (
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is a naïve 🦊?"},
    {"role": "assistant", "content": "A young one."},
    {"role": "user", "content": "And an old one?"},
)


def check_tokenizer(tokenizer: HubTokenizer, refused: Sequence[Message]) -> None:
    """Check the whole contract; `refused` are messages that the tokenizer's template rejects."""
    vocabulary = tokenizer.vocabulary  # Counted anew at each call, in 2 ms.
    assert max(tokenizer.eos_token_ids | tokenizer.special_token_ids) < vocabulary
    for text in TEXTS:
        _check_round_trip(tokenizer, text)
        _check_whole(tokenizer, text)
        assert all(token < vocabulary for token in tokenizer.encode(text))
        _check_spelling(tokenizer, text)
    _check_streams_are_independent(tokenizer)
    _check_end_of_sequence_is_no_text(tokenizer)
    _check_rendering(tokenizer)
    _check_template_errors(tokenizer, refused)
    _check_threads(tokenizer)


def read(tokenizer: HubTokenizer, ids: Sequence[int]) -> str:
    """Token by token, as an engine delivers them."""
    detokenizer = tokenizer.detokenizer()
    return "".join([detokenizer.feed(token_id) for token_id in ids]) + detokenizer.finish()


def _check_whole(tokenizer: HubTokenizer, text: str) -> None:
    """What is put around a text stands around it, and is the same for every text."""
    ids, around = tokenizer.encode(text), tokenizer.encode_whole("")
    whole = tokenizer.encode_whole(text)
    assert len(whole) == len(ids) + len(around)
    assert any(whole == [*around[:at], *ids, *around[at:]] for at in range(len(around) + 1))


def _check_round_trip(tokenizer: HubTokenizer, text: str) -> None:
    """Nothing is added, nothing is lost: no special tokens except those in the text."""
    ids = tokenizer.encode(text)
    assert ids == tokenizer.encode(text)
    assert read(tokenizer, ids) == text
    assert bool(ids) == bool(text)


def _check_spelling(tokenizer: HubTokenizer, text: str) -> None:
    """The bytes of single tokens join to the text, parts of characters included; special tokens are spelled
    out, and unknown ids are empty."""
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()
    for token_id in tokenizer.special_token_ids | tokenizer.eos_token_ids:
        assert tokenizer.token_bytes(token_id).decode() == tokenizer.decode([token_id])


def _check_streams_are_independent(tokenizer: HubTokenizer) -> None:
    """Two answers that are inside a character at the same moment do not mix."""
    ids = tokenizer.encode("🦊é你")
    one, two = tokenizer.detokenizer(), tokenizer.detokenizer()
    texts = ["", ""]
    for token_id in ids:
        texts[0] += one.feed(token_id)
        texts[1] += two.feed(token_id)
    assert [texts[0] + one.finish(), texts[1] + two.finish()] == ["🦊é你"] * 2


def _check_end_of_sequence_is_no_text(tokenizer: HubTokenizer) -> None:
    """A request that ignores the end of sequence goes on, and its text does not show it."""
    assert tokenizer.eos_token_ids
    for eos in tokenizer.eos_token_ids:
        assert read(tokenizer, [*tokenizer.encode("a"), eos, *tokenizer.encode("b")]) == "ab"


def _check_rendering(tokenizer: HubTokenizer) -> None:
    """Every turn's role and content in order, then the opening of the assistant's turn; always the same."""
    text = tokenizer.render(ChatPrompt(tuple(CONVERSATION)))
    assert text == tokenizer.render(ChatPrompt(tuple(CONVERSATION)))
    position = 0
    for message in CONVERSATION:
        position = text.index(message["role"], position)
        position = text.index(message["content"], position)
    assert "assistant" in text[position:]
    without_last = tokenizer.render(ChatPrompt(tuple(CONVERSATION[:-1])))
    assert without_last != text
    assert tokenizer.encode(text)


def _check_template_errors(tokenizer: HubTokenizer, refused: Sequence[Message]) -> None:
    """A client error for any exception of the template, without effect on the next conversation."""
    with pytest.raises(TemplateFailed) as caught:
        tokenizer.render(ChatPrompt(tuple(refused)))
    assert isinstance(caught.value, InvalidRequest)
    assert caught.value.param == "messages"
    assert tokenizer.render(ChatPrompt(tuple(CONVERSATION)))


def _check_threads(tokenizer: HubTokenizer) -> None:
    """Four threads at once get the same as one alone: preparation runs in worker threads."""
    texts = [f"{number} {text}" for number in range(20) for text in TEXTS[1:5]]
    alone = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(tokenizer.encode, texts)) == alone
