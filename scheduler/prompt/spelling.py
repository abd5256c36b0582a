"""How a vocabulary's tokens spell text, found at load by decoding all of them.

A table of bytes reads a token in a fifth of a microsecond, the same in the middle of a stream as in the whole
text, and without the library. It must say what the library's decoder says of every token.

Some folders have a vocabulary of bytes and a decoder for another kind (Mistral's tekken with SentencePiece's
decoder): what the model writes would be read as `Hello,ĠhowĠareĠyou?`. What the tokenizer makes of a text
decides, since the model was trained on that, and the decoder is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any

from scheduler.answer.detokenizer import byte_level, sentence_piece
from scheduler.errors import StartupError

_PROBE = "你 🦊 你"
"""What no normalizer changes, and what bytes and spaces are written for."""


class Spelling(StrEnum):
    BYTE_LEVEL = "byte-level"
    PIECES = "SentencePiece"


def spelling_of(backend: Any, vocabulary: Mapping[str, int]) -> Spelling:
    """Return how the library's tokenizer spells text. Its decoder is replaced where it cannot read what the
    tokenizer writes. `vocabulary`: all tokens, which the library takes 0.3 s to list for 260,000; the rest
    takes as long. Raise StartupError for another way."""
    added = backend.get_added_tokens_decoder()
    tokens = {token_id: token for token, token_id in vocabulary.items() if token_id not in added}
    if _writes_bytes(backend):
        if not _reads_bytes(backend, tokens):
            from tokenizers import decoders

            backend.decoder = decoders.ByteLevel()
        return Spelling.BYTE_LEVEL
    if not _reads_pieces(backend, tokens):
        raise StartupError(
            "--model: its tokenizer spells text neither in bytes nor as SentencePiece does, and is not served"
        )
    return Spelling.PIECES


def with_plain_decoder(written: str) -> str:
    """Return a SentencePiece tokenizer's JSON with the decoder from which the library of grammars knows that
    `▁` is a space: it would take Metaspace's tokens for texts with that letter."""
    if '"Metaspace"' not in written:
        return written
    plain = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]
    decoder = {"type": "Sequence", "decoders": [*plain, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return json.dumps(json.loads(written) | {"decoder": decoder}, ensure_ascii=False)


def _writes_bytes(backend: Any) -> bool:
    """Return whether the tokenizer turns a text into the letters of bytes before it looks for tokens."""
    text = _PROBE if backend.normalizer is None else backend.normalizer.normalize_str(_PROBE)
    if backend.pre_tokenizer is not None:
        text = "".join(piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text))
    return text != _PROBE and byte_level(text).strip() == _PROBE.encode()


def _reads_bytes(backend: Any, tokens: dict[int, str]) -> bool:
    data = b"".join(map(byte_level, tokens.values()))
    return _decoded(backend, list(tokens)) == data.decode("utf-8", "replace")


def _reads_pieces(backend: Any, tokens: dict[int, str]) -> bool:
    """Return whether every token reads as a SentencePiece token behind another one."""
    bytes_ = {token_id: token for token_id, token in tokens.items() if token.startswith("<0x")}
    whole = [token_id for token_id in tokens if token_id not in bytes_]
    before = next((token_id for token_id in whole if tokens[token_id].strip("▁")), None)
    if before is None:
        return False
    written = "".join([tokens[token_id] for token_id in whole])
    if "▁" not in written:
        return False
    first = tokens[before]
    # Neighbouring bytes would be read together.
    written += "".join(
        [sentence_piece(token).decode("utf-8", "replace") + first for token in bytes_.values()]
    )
    tried = [before, *whole, *chain.from_iterable((token_id, before) for token_id in bytes_)]
    # What it takes from the first token is read by itself.
    return _decoded(backend, tried) == _decoded(backend, [before]) + written.replace("▁", " ")


def _decoded(backend: Any, token_ids: Sequence[int]) -> str:
    return str(backend.decode(list(token_ids), skip_special_tokens=False))
