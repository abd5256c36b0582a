"""A prompt's ids from the kept ids of its pieces are those of the whole text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from scheduler.prompt.token_pieces import TokenPieces
from tests.examples import examples
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.served_tokenizers import KINDS, TEXTS, tokenizer_of

_MEBIBYTE = 1 << 20
MARKS = ("<|im_start|>", "<|im_end|>", "<|im_", "<think>", "</think>", "[INST]")


class Kind:
    """The part of a tokenizer that pieces need, with `MARKS` as special tokens, which overlap, one that the
    normalizer may change, and some more."""

    def __init__(self, name: str, *more: AddedToken) -> None:
        self._library = Tokenizer.from_str(tokenizer_of(name)[1].to_str())
        self._library.add_special_tokens([*(AddedToken(mark, normalized=False) for mark in MARKS), *more])
        self._library.add_tokens([AddedToken("<tool_call>", normalized=True)])

    @property
    def cuts(self) -> Mapping[str, int]:
        added = self._library.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if not token.normalized}

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]


kind = cache(Kind)

texts = st.lists(
    st.one_of(
        st.sampled_from([*MARKS, "<tool_call>", " ", "  ", "\n", "<|", "|>", *TEXTS]),
        st.text(max_size=12),
        st.characters(codec="utf-8"),
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("name", KINDS)
def test_pieces_have_the_ids_of_the_whole_text(name: str) -> None:
    """Marks that overlap or are cut, white space beside them, characters of several bytes; kept or not."""
    tokenizer = kind(name)
    pieces = TokenPieces(tokenizer.encode_all, tokenizer.cuts, _MEBIBYTE)
    assert pieces.works

    @settings(deadline=None, max_examples=examples(100))
    @given(st.lists(texts, min_size=1, max_size=3))
    def check(several: list[str]) -> None:
        for text in (*several, "".join(several)):
            assert pieces.encode(text, "").tolist() == tokenizer.encode_all([text])[0]

    check()


class Counted:
    """A tokenizer that counts the texts that it encodes."""

    def __init__(self) -> None:
        self._tokenizer = ByteTokenizer()
        self.cuts = self._tokenizer.cuts
        self.encoded: list[str] = []

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        self.encoded += texts
        return self._tokenizer.encode_all(texts)


def counted(limit_bytes: int = _MEBIBYTE) -> tuple[TokenPieces, list[str]]:
    tokenizer = Counted()
    pieces = TokenPieces(tokenizer.encode_all, tokenizer.cuts, limit_bytes)
    tokenizer.encoded.clear()
    return pieces, tokenizer.encoded


def test_a_turn_tokenizes_what_is_new_in_it() -> None:
    """A history of which every piece is known, and one message more."""
    pieces, encoded = counted()
    history = "".join(f"<user>question {number}\n" for number in range(20))
    pieces.encode(history, "")
    encoded.clear()
    assert (
        pieces.encode(history + "<user>the last one\n", "").tobytes()
        == pieces.encode(history + "<user>the last one\n", "").tobytes()
    )
    assert encoded == ["\n<user>the last one"]


def test_salts_share_nothing() -> None:
    """Nobody learns from the time that a prompt takes what another tenant has sent."""
    pieces, encoded = counted()
    pieces.encode("a secret\nof one tenant", "one\0")
    encoded.clear()
    pieces.encode("a secret\nof one tenant", "two\0")
    assert encoded == ["a secret", "\nof one tenant"]


def test_what_is_kept_is_bounded_and_the_least_recently_used_goes_first() -> None:
    pieces, encoded = counted(limit_bytes=4 * 300)
    for name in ("one", "two", "three", "one", "four", "five"):
        pieces.encode(name, "")
    assert 0 < pieces.statistics().held_bytes <= 4 * 300
    encoded.clear()
    pieces.encode("one", "")
    pieces.encode("two", "")
    assert encoded == ["two"]


class Merging(Counted):
    """A tokenizer that merges across the marks that it names."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return super().encode_all([text.replace("d\nw", "*") for text in texts])


def test_a_tokenizer_that_merges_across_its_marks_is_found_out() -> None:
    pieces = TokenPieces(Merging().encode_all, Merging().cuts, _MEBIBYTE)
    assert not pieces.works
    assert bytes(pieces.encode("word\nword", "").tolist()) == b"wor*ord"
