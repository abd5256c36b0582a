"""A lower bound on a text's tokens from its letters, to reject prompts that cannot fit before tokenizing
them.

Tokenizing takes a hundred bytes of memory for each byte of text: a gigabyte for a body of 10 MB.

Only ASCII letters, digits and the ideographs of Chinese and Japanese count, because every tokenizer known
here must spell them. White space may join the special token beside it, and characters that a vocabulary lacks
may be one unknown token, however long. So the bound of a text of spaces is 0, and it is tokenized. A
tokenizer with an unknown component, which may drop letters, has no bound at all.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from typing import Any

_ASCII_LETTERS = string.ascii_letters + string.digits
# The first bytes of U+4000 to U+9FFF as UTF-8, which no other character begins with, and how byte-level BPE
# writes them.
_IDEOGRAPH_BYTES = bytes(range(0xE4, 0xEA))
_IDEOGRAPH_LETTERS = _IDEOGRAPH_BYTES.decode("latin-1")
_IN_TOKEN = re.compile(f"[A-Za-z0-9{_IDEOGRAPH_LETTERS}\u4000-\u9fff]")
_COUNTED = frozenset(_ASCII_LETTERS.encode() + _IDEOGRAPH_BYTES)
_NOT_COUNTED = bytes(byte for byte in range(256) if byte not in _COUNTED)
_OTHER_CHARACTERS = bytes(byte for byte in range(0xC2, 0xF5) if byte not in _COUNTED)
_KEEPING_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "ByteLevel", "Sequence")
_KEEPING_PRE_TOKENIZERS = ("ByteLevel", "Metaspace", "Digits", "Sequence")


def longest_token(tokenizer: dict[str, Any], normalized: Callable[[str], str]) -> int | None:
    """Return the most counted letters in one token, or None if unknown.

    `tokenizer`: the content of its `tokenizer.json`. `normalized`: its normalizer.
    """
    model = tokenizer["model"]
    parts = [*_parts(tokenizer.get("normalizer")), *_parts(tokenizer.get("pre_tokenizer"))]
    if (
        # In WordPiece and Unigram several letters may be one unknown token.
        model["type"] != "BPE"
        or model.get("continuing_subword_prefix")
        or model.get("end_of_word_suffix")
        or not all(map(_keeps_letters, parts))
        or not model["vocab"].keys() >= _spellings(model, parts)
    ):
        return None
    added = [token["content"] for token in tokenizer.get("added_tokens", ())]
    tokens = (*model["vocab"], *added, *map(normalized, added))
    longest = 0
    for token in tokens:
        if len(token) > longest:
            longest = max(longest, len(_IN_TOKEN.findall(token)))
    return longest


def fewest_tokens(text: str, longest: int) -> int:
    """Return the least number of tokens of `text` if a token has at most `longest` letters. 20 ms for 10 MB.

    Normalizers remove a letter only by combining it with an accent after it. Accents are not counted, so at
    most as many letters disappear as there are other characters beyond ASCII.
    """
    spelled = text.encode()
    letters = len(spelled.translate(None, _NOT_COUNTED))
    accents = len(spelled) - len(spelled.translate(None, _OTHER_CHARACTERS))
    return max(0, -(-(letters - accents) // longest))


def _parts(component: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield a component and, if it is a sequence, all its parts."""
    if component is None:
        return
    yield component
    for part in (*component.get("normalizers", ()), *component.get("pretokenizers", ())):
        yield from _parts(part)


def _keeps_letters(part: dict[str, Any]) -> bool:
    """Return whether a component keeps all letters, except those with an accent."""
    match part["type"]:
        case "Replace":
            replaced = part["pattern"].get("String")
            # A replacement by an accent would remove letters, too.
            harmless = part["content"] == "▁" or part["content"].isascii()
            return bool(replaced) and not _IN_TOKEN.search(replaced) and harmless
        case "Split":
            return bool(part["behavior"] != "Removed")
        case kind:
            return kind in _KEEPING_NORMALIZERS or kind in _KEEPING_PRE_TOKENIZERS


def _spellings(model: dict[str, Any], parts: list[dict[str, Any]]) -> set[str]:
    """Return the tokens that a vocabulary needs so that no counted letter is unknown."""
    if any(part["type"] == "ByteLevel" for part in parts):
        return {*_ASCII_LETTERS, *_IDEOGRAPH_LETTERS}
    # In a vocabulary of characters an ideograph is one token, or three of these.
    return {*_ASCII_LETTERS, *(f"<0x{byte:02X}>" for byte in range(256))}
