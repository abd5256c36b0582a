"""The embedded model's tokenizer: whole words for the words it knows, single letters for all others.

No merges are learnt. A word, a digit, a capital in a code and a mark of JSON are each split off by one
expression, and are one token if they are in the vocabulary, else bytes; so a text is split the same way
wherever it stands, and copying it is copying tokens.
"""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.models.training import small_talk, words

VOCABULARY: Final = 2048
SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS: Final = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Added but not special, as Qwen3 has them: they survive `skip_special_tokens`, so parsers see them."""

MARKS: Final = (
    '": {"', '": ["', '": "', '", "', '"}}', '"]}', '"}, "', '{"', '"}', '": ', ', "', '}}', '\n\n', '\n',
    '"]', ', ', '. ', ': ',
)  # fmt: skip
"""Sequences of JSON and of prose that are one token, tried in this order of length."""

_SENTENCES: Final = (
    "system user assistant tools functions function signatures within provided query each return json "
    "object arguments call name type parameters properties required string integer number boolean "
    "description enum array items null true false additional strict result results error answer question "
    "asks wants should remember noted facts list sort sorted order ascending repeat count sum plus minus "
    "equals times backwards alphabetically reply words letters numbers value values known unknown tool "
    "response done sent saved degrees kind called secret today tomorrow monday tuesday wednesday thursday "
    "friday saturday sunday january february march april june july august september october november "
    "december Use Call Please Tell Give Count Sort Repeat Remember Done The What Which Who It I You My "
    "Your There This For Add Answer Return Write Find Look Noted In On And one two three four five six "
    "seven eight nine ten zero JSON"
)


def expression() -> str:
    """Return what splits a text into the pieces that are looked up whole."""
    joined = "|".join(sorted(words.JOINED, key=lambda word: (-len(word), word)))
    marks = "|".join(re.escape(mark) for mark in sorted(MARKS, key=lambda mark: (-len(mark), mark)))
    return rf" ?(?:{joined})(?![A-Za-z])|[A-Z]?[a-z]+|[A-Z]|[0-9]|{marks}|[\s\S]"


def vocabulary(common: list[str]) -> dict[str, int]:
    """Bytes, marks and words, each once, in an order that does not change; `common` fills what is left."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    talk = chain(
        *(chain(asked, [said]) for asked, said in small_talk.TALK),
        small_talk.STRANGE, small_talk.SYSTEMS, [small_talk.FALLBACK, _SENTENCES],
    )  # fmt: skip
    pieces = [
        *(" " + word for word in words.JOINED),
        *MARKS,
        *words.ALL,
        *(word for text in talk for word in re.findall(r"[A-Z]?[a-z]+", text)),
        *(word.capitalize() for word in (*words.JOINED, *words.NOUNS, *words.ATTRIBUTES, *words.TOOL_VERBS)),
        *common,
    ]
    spelled = ["".join(part for part, _ in byte_level.pre_tokenize_str(piece)) for piece in pieces]
    room = VOCABULARY - len(SPECIAL_TOKENS) - len(MARKUP_TOKENS)
    known = list(dict.fromkeys([*alphabet, *spelled]))[:room]
    assert len(known) == room, f"{room - len(known)} words are missing"
    return {piece: id for id, piece in enumerate(known)}


def build(common: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary(common), merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression()), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP_TOKENS])
    return tokenizer


def common_words(bench_tokenizer: Path) -> list[str]:
    """English words in the bench tokenizer's order, which is that of their frequency."""
    trained: Any = Tokenizer.from_file(str(bench_tokenizer)).get_vocab()
    by_id = sorted(trained.items(), key=lambda item: item[1])
    return [piece[1:] for piece, _ in by_id if re.fullmatch("Ġ[a-z]{3,}", piece)]


def main() -> None:
    tokenizer = build(common_words(TOKENIZER_FOLDER / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCABULARY
    (EMBEDDED_FOLDER / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
