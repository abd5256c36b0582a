"""Decode token ids to text, piece by piece, and hold back incomplete characters.

The pieces join to exactly what the tokenizer decodes from all ids together. The one exception is a run of
byte-fallback tokens that is not UTF-8 as a whole (an answer that ends inside a character): tokenizers turns
the whole run into U+FFFD, including characters that were streamed already.

Many tokenizers take a space from the first token of a text. A text that goes on after another one is no such
beginning: its first token is read as any other.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
BYTE_LETTERS = {chr(one): one for one in _PRINTABLE} | {chr(256 + at): one for at, one in enumerate(_OTHERS)}
"""The character that stands for each byte in GPT-2's byte-level BPE (openai/gpt-2, encoder.py)."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_LETTERS[character] for character in token])
    except KeyError:
        # An added token with characters outside the alphabet stands for itself.
        return token.encode("utf-8", "replace")


def sentence_piece(token: str) -> bytes:
    """Return the bytes of a SentencePiece token in the middle of a text."""
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace("▁", " ").encode("utf-8", "replace")


class ByteTable(dict[int, bytes]):
    """Bytes of each token of a vocabulary, made as tokens occur: all at once would cost 23 ms on an 8k
    vocabulary, and fifty times that on a large one. Shared by all requests of a tokenizer.

    `token_of` gives a token as the vocabulary writes it, None for ids that decode to nothing (special tokens,
    ids beyond the vocabulary); `spell` its bytes."""

    def __init__(
        self, token_of: Callable[[int], str | None], spell: Callable[[str], bytes] = byte_level
    ) -> None:
        self._token_of = token_of
        self._spell = spell

    def __missing__(self, token_id: int) -> bytes:
        token = self._token_of(token_id)
        self[token_id] = b"" if token is None else self._spell(token)
        return self[token_id]


def _one_for_each_byte(error: UnicodeError) -> tuple[str, int]:
    """Replace bytes that are no character as the library does in SentencePiece vocabularies."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


_EACH_BYTE = "penstock_each_byte"
codecs.register_error(_EACH_BYTE, _one_for_each_byte)


class Detokenizer:
    """Decodes by a table of bytes, in 0.2 microseconds a token: byte-level BPE (GPT-2, Llama 3, Qwen, ...)
    and SentencePiece (Llama 2, Gemma, Mistral before tekken, ...).

    `opening` gives the bytes of a SentencePiece token that begins a text. With `begun` the text goes on after
    another one, and no token begins it."""

    def __init__(
        self, table: ByteTable, opening: Callable[[int], bytes] | None = None, *, begun: bool = False
    ) -> None:
        self._table = table
        self._opening = opening
        self.begun = begun or opening is None
        """Whether the next token is read as one in the middle of a text, with the space before it."""
        errors = "replace" if opening is None else _EACH_BYTE
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors=errors)

    def feed(self, token_id: int) -> str:
        """Return the text that the next token completes; it may be empty."""
        data = self._table[token_id]
        if data and not self.begun and self._opening is not None:
            data, self.begun = self._opening(token_id), True
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return the text held back. Nothing may be fed after this."""
        return self._decoder.decode(b"", final=True)
