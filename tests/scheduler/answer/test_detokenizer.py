"""The detokenizer: for any pieces, the text that the tokenizer itself decodes from all ids at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from scheduler.answer.detokenizer import (
    ByteTable,
    Detokenizer,
    TableDetokenizer,
    WindowDetokenizer,
)
from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.prompt.tokenizer import HubTokenizer
from tests.examples import examples

thoroughly = settings(max_examples=examples(200), deadline=None)

TEXT = "Hello world, naïve café. 你好，世界 🦊🏳️‍🌈 zażółć gęślą jaźń\n\tdef f(x): return x"
ADDED = ["<think>", "日本語", "naïve", "é", "two words", "😀", "\ufffd"]


def _byte_level() -> Tokenizer:
    """Byte-level BPE whose added tokens are plain, with spaces, inside and outside its byte alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    tokenizer.add_tokens([*ADDED, AddedToken("<終>", special=True)])
    return tokenizer


def _sentence_piece(decoder: Any) -> Tokenizer:
    """A vocabulary of words, word beginnings and the 256 byte tokens, as Llama 2 and Gemma have."""
    words = ["▁", "▁▁", "▁Hello", "▁world", "▁a", "a", "b", "lo", "é", "你", "🦊", "\n", ",", "'s"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens(["<mark>", "日本語"])
    return tokenizer


LLAMA_DECODER = [
    decoders.Replace("▁", " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Strip(" ", 1, 0),
]
METASPACE_DECODER = [decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()]
FIRST_BYTE_TOKEN = 3


@cache
def tokenizer_of(kind: str) -> tuple[HubTokenizer, Tokenizer]:
    """As the service loads it, and the library's own for comparison."""
    if kind == "committed":
        return HubTokenizer(TOKENIZER_FOLDER), Tokenizer.from_file(str(TOKENIZER_FOLDER / "tokenizer.json"))
    match kind:
        case "byte-level":
            tokenizer = _byte_level()
        case "llama":
            tokenizer = _sentence_piece(decoders.Sequence(LLAMA_DECODER))
        case _:
            tokenizer = _sentence_piece(decoders.Sequence(METASPACE_DECODER))
    with TemporaryDirectory() as folder:
        tokenizer.save(str(Path(folder, "tokenizer.json")))
        settings_ = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        Path(folder, "tokenizer_config.json").write_text(json.dumps(settings_))
        return HubTokenizer(Path(folder)), tokenizer


def read(detokenizer: Detokenizer, ids: Sequence[int]) -> str:
    return "".join(map(detokenizer.feed, ids)) + detokenizer.finish()


characters = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")
"""Without the replacement character, which `WindowDetokenizer` cannot tell from an incomplete one: many of
them before a character in byte tokens exhaust its bound."""


@pytest.mark.parametrize(
    ("kind", "vocabulary"), [("byte-level", 345), ("committed", 8200)], ids=["byte-level", "committed"]
)
def test_byte_level_text_is_that_of_all_ids_at_once(kind: str, vocabulary: int) -> None:
    """Random ids, most of them not text, special and added tokens and ids beyond the vocabulary."""
    hub, library = tokenizer_of(kind)
    assert isinstance(hub.detokenizer(), TableDetokenizer)
    added = st.sampled_from(sorted(library.get_added_tokens_decoder()))

    @thoroughly
    @given(st.lists(st.integers(0, vocabulary - 1) | added, max_size=40))
    def check(ids: list[int]) -> None:
        assert read(hub.detokenizer(), ids) == library.decode(ids, skip_special_tokens=True)

    assert vocabulary > library.get_vocab_size()
    check()


@st.composite
def ids_with_whole_characters(draw: st.DrawFn) -> list[int]:
    """Tokens of the vocabulary of `_sentence_piece` in any order; its byte tokens spell whole characters."""
    token = st.sampled_from([0, 1, 2, *range(FIRST_BYTE_TOKEN + 256, 275)]).map(lambda token: [token])
    character = characters.map(lambda character: [FIRST_BYTE_TOKEN + byte for byte in character.encode()])
    return [token for tokens in draw(st.lists(token | character, max_size=30)) for token in tokens]


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
@thoroughly
@given(ids=ids_with_whole_characters())
def test_sentence_piece_text_is_that_of_all_ids_at_once(kind: str, ids: list[int]) -> None:
    """Random tokens, special and added ones too, wherever byte tokens form characters."""
    hub, library = tokenizer_of(kind)
    assert isinstance(hub.detokenizer(), TableDetokenizer)
    assert read(hub.detokenizer(), ids) == library.decode(ids, skip_special_tokens=True)


def _byte_tokens(data: bytes) -> list[int]:
    return [FIRST_BYTE_TOKEN + byte for byte in data]


def byte_detokenizer() -> TableDetokenizer:
    """Ids are bytes."""

    class Bytes(ByteTable):
        def __getitem__(self, token_id: int) -> bytes:
            return bytes([token_id])

    return TableDetokenizer(Bytes(lambda token_id: None))


def test_an_incomplete_character_is_held_back() -> None:
    """Nothing of a fox before its fourth byte, in both kinds of tokenizer."""
    fox = "🦊".encode()
    byte_level = byte_detokenizer()
    assert [byte_level.feed(byte) for byte in fox] == ["", "", "", "🦊"]
    window = tokenizer_of("llama")[0].detokenizer()
    assert [window.feed(token) for token in _byte_tokens(fox)] == ["", "", "", "🦊"]


def test_bytes_that_are_no_character_are_not_held_back_for_ever() -> None:
    """Eight byte tokens are not the beginning of a character: a client sees progress."""
    window = tokenizer_of("llama")[0].detokenizer()
    assert "".join([window.feed(token) for token in _byte_tokens(b"\xff" * 8)]) == "\ufffd" * 8


@thoroughly
@given(data=st.binary(max_size=40))
def test_invalid_bytes_become_replacement_characters(data: bytes) -> None:
    """The same number as Python and Rust's from_utf8_lossy produce."""
    assert read(byte_detokenizer(), list(data)) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("kind", ["byte-level", "committed", "llama", "metaspace"])
def test_a_replacement_character_of_the_answer_itself_is_text(kind: str) -> None:
    """A model may quote one."""
    hub, library = tokenizer_of(kind)
    ids = library.encode("a\ufffdb\ufffd").ids
    assert read(hub.detokenizer(), ids) == library.decode(ids) == "a\ufffdb\ufffd"


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
@thoroughly
@given(before=ids_with_whole_characters(), ids=ids_with_whole_characters())
def test_a_window_reads_as_a_table_does(kind: str, before: list[int], ids: list[int]) -> None:
    """At the beginning of a text and behind one: tokenizers that no table reads keep the same rules."""
    hub, library = tokenizer_of(kind)
    hidden = hub.special_token_ids
    before = [token_id for token_id in before if token_id not in hidden]

    def decode(token_ids: Sequence[int]) -> str:
        seen = [token_id for token_id in token_ids if token_id not in hidden]
        return str(library.decode(seen, skip_special_tokens=False))

    assert read(WindowDetokenizer(decode), ids) == read(hub.detokenizer(), ids)
    if before:
        continued = read(WindowDetokenizer(decode, before), ids)
        assert continued == read(hub.detokenizer(after=before), ids)


def test_a_long_run_of_tokens_without_text_costs_the_same_each() -> None:
    """Special tokens decode to nothing; the window slides over them and does not grow."""
    lengths: list[int] = []

    def decode(token_ids: Sequence[int]) -> str:
        lengths.append(len(token_ids))
        return "".join("x" for token_id in token_ids if token_id)

    detokenizer = WindowDetokenizer(decode)
    text = "".join(detokenizer.feed(token_id) for token_id in [1, *[0] * 500, 1])
    assert text + detokenizer.finish() == "xx"
    assert max(lengths) < 40
