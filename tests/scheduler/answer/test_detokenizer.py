"""The detokenizer holds back what is no character yet; that it reads what the library reads is in
`../prompt/test_tokenizer_kinds.py`."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.answer.detokenizer import ByteTable, Detokenizer
from tests.examples import examples
from tests.fakes.served_tokenizers import tokenizer_of


class Bytes(ByteTable):
    """Ids are bytes."""

    def __getitem__(self, token_id: int) -> bytes:
        return bytes([token_id])


def test_an_incomplete_character_is_held_back() -> None:
    """Nothing of a fox before its fourth byte, in both kinds of tokenizer. What is no character is not held
    back for ever: of SentencePiece's bytes each is one then, as the library has it."""
    tokenizer, library = tokenizer_of("llama")
    fox = "🦊".encode()
    for detokenizer, ids, replaced in (
        (Detokenizer(Bytes(lambda token_id: None)), [*fox], 1),
        (tokenizer.detokenizer(), [library.get_vocab()[f"<0x{byte:02X}>"] for byte in fox], 3),
    ):
        assert [detokenizer.feed(token_id) for token_id in ids] == ["", "", "", "🦊"]
        assert "".join(map(detokenizer.feed, ids[:3])) + detokenizer.finish() == "\ufffd" * replaced


@settings(max_examples=examples(200), deadline=None)
@given(data=st.binary(max_size=40))
def test_invalid_bytes_become_replacement_characters(data: bytes) -> None:
    """The same number as Python and Rust's from_utf8_lossy produce."""
    detokenizer = Detokenizer(Bytes(lambda token_id: None))
    assert "".join(map(detokenizer.feed, data)) + detokenizer.finish() == data.decode("utf-8", "replace")
