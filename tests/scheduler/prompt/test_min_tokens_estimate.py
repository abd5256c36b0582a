"""The lower bound on a text's tokens: never above the true number, for any tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.prompt.min_tokens_estimate import fewest_tokens, longest_token
from tests.examples import examples

WORDS = (
    "the word internationalization of Wörter e\u0301te\u0301 漢字 漢字仮名交じり文 aaaaaaaaa 012345 ½ \u212a"
)
# The last becomes a token that stands for more letters, before they are normalized, than any that has some.
TEXT = [WORDS, "    " + WORDS.upper(), "漢字" * 9, "x = {'a': [1, 2]}", "ö" * 256] * 3
GPT_4 = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ALPHABET = [*map(chr, range(48, 58)), *map(chr, range(65, 91)), *map(chr, range(97, 123))]
COMPATIBLE = "①" * 80
# Tokens of a template: they eat the white space beside them, or hold what a normalizer makes letters of.
ADDED = [
    AddedToken("<|turn_of_the_assistant|>", special=True, lstrip=True, rstrip=True),
    AddedToken(COMPATIBLE, normalized=True),
]


def trained(
    normalizer: normalizers.Normalizer | None, pre_tokenizer: pre_tokenizers.PreTokenizer | None
) -> Tokenizer:
    """Byte-level, or with tokens for the bytes of unknown characters, as its parts say."""
    byte_level = "ByteLevel" in repr((normalizer, pre_tokenizer))
    model = models.BPE() if byte_level else models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else ALPHABET
    first = [] if byte_level else ["<unk>", *BYTES]
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=900, special_tokens=first, initial_alphabet=alphabet, show_progress=False
        ),
    )
    if not byte_level:
        # As sentencepiece's are converted: they are tokens of the vocabulary, and no text is looked for them.
        described = json.loads(tokenizer.to_str())
        described["added_tokens"] = []
        tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.add_tokens(ADDED)
    return tokenizer


def split(pattern: Regex, behavior: str) -> pre_tokenizers.PreTokenizer:
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, behavior), level])


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "ours": lambda: Tokenizer.from_file(str(TOKENIZER_FOLDER / "tokenizer.json")),
    "qwen": lambda: trained(normalizers.NFC(), split(GPT_4, "isolated")),
    "llama 3": lambda: trained(None, split(GPT_4, "isolated")),
    "gpt-2": lambda: trained(None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "byte level, compatible letters": lambda: trained(normalizers.NFKC(), split(GPT_4, "merged_with_next")),
    "llama 2": lambda: trained(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None
    ),
    "mistral": lambda: trained(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "gemma": lambda: trained(
        normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous")
    ),
    "folded": lambda: trained(
        normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.NFC()]),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Metaspace()]),
    ),
}


@cache
def known(kind: str) -> tuple[Tokenizer, int]:
    tokenizer = KINDS[kind]()
    longest = longest_of(tokenizer)
    assert longest is not None
    return tokenizer, longest


def longest_of(tokenizer: Tokenizer) -> int | None:
    normalizer = tokenizer.normalizer
    return longest_token(
        json.loads(tokenizer.to_str()), normalizer.normalize_str if normalizer is not None else str
    )


PIECES = st.one_of(
    st.sampled_from(
        [*WORDS.split(), *(token.content for token in ADDED), "e\u0301" * 5, "漢字" * 7, " " * 9]
    ),
    st.text(max_size=12),
    st.text(alphabet="aeiouAEIOU09 漢字\u0301\u0308\u0345\u0344ｱ", max_size=40),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=examples(150))
@given(pieces=st.lists(PIECES, max_size=8), times=st.integers(1, 20))
@example(pieces=["o\u0308"], times=1024)
@example(pieces=["<|turn_of_the_assistant|>", " " * 50], times=10)
@example(pieces=["1" * 80], times=10)
def test_no_text_has_fewer_tokens_than_its_floor(kind: str, pieces: list[str], times: int) -> None:
    """Otherwise a prompt that fits would be refused."""
    tokenizer, longest = known(kind)
    text = "".join(pieces) * times
    assert fewest_tokens(text, longest) <= len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", KINDS)
def test_words_and_ideographs_have_a_floor_of_a_token_for_each_longest_one(kind: str) -> None:
    """So megabytes are refused unread: with a longest token of 20 letters, 10 MB are 500,000 tokens."""
    _, longest = known(kind)
    assert longest <= 80
    assert fewest_tokens("word " * 1000, longest) == -(-4000 // longest)
    assert fewest_tokens("漢字、" * 3000, longest) == -(-3000 // longest)
    assert fewest_tokens(" \n.;" * 1000, longest) == 0


def with_part(**parts: Any) -> Tokenizer:
    tokenizer = trained(None, split(GPT_4, "isolated"))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda: with_part(normalizer=normalizers.Replace(Regex("[a-z]+"), "a")), id="expression"
        ),
        pytest.param(lambda: with_part(normalizer=normalizers.Replace("word", "")), id="words dropped"),
        pytest.param(
            lambda: with_part(
                normalizer=normalizers.Sequence([normalizers.Replace(" ", "\u0301"), normalizers.NFC()])
            ),
            id="accents for spaces",
        ),
        pytest.param(lambda: with_part(normalizer=normalizers.BertNormalizer()), id="a normalizer of words"),
        pytest.param(lambda: with_part(pre_tokenizer=split(Regex(r"\w+"), "removed")), id="words split off"),
        pytest.param(
            lambda: with_part(pre_tokenizer=pre_tokenizers.CharDelimiterSplit("e")), id="letters split off"
        ),
        pytest.param(
            lambda: Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")), id="word pieces"
        ),
        pytest.param(lambda: Tokenizer(models.Unigram([("<unk>", 0.0)], unk_id=0)), id="unigrams"),
        pytest.param(
            lambda: Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", fuse_unk=True)),
            id="unknown letters",
        ),
    ],
)
def test_a_tokenizer_that_may_drop_letters_has_no_floor(make: Callable[[], Tokenizer]) -> None:
    """Its parts are recognized by name; an unknown one counts as one that may."""
    assert longest_of(make()) is None
