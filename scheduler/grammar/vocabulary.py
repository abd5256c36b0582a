"""A model's vocabulary for llguidance, and the spelling of special tokens in its grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer

from scheduler.shared.deep_stack import TRIED_BYTES, on_deep_stack
from scheduler.shared.grammar_limits import parser_limits
from scheduler.shared.special_spellings import without_spellings

NO_TEXT = "no text fits it"
"""The complaint of a grammar whose first mask allows nothing."""
_DETAILS = re.compile(r"\n<|\n  while processing ")
"""Begin a backtrace, and the chain of references that led to a faulty definition, which has the same
complaint by itself."""


class GrammarVocabulary:
    """Built once per model: 50 ms for a small vocabulary, half a second for a large one."""

    def __init__(self, tokenizer_json: str, vocabulary: int, eos_token_ids: Sequence[int]) -> None:
        """Raise the library's exceptions for an unsupported tokenizer."""
        self._tokenizer = LLTokenizer(
            without_spellings(tokenizer_json), n_vocab=vocabulary, eos_token=list(eos_token_ids)
        )
        added = json.loads(tokenizer_json).get("added_tokens") or []
        self._special = {
            str(token["content"]): int(token["id"])
            for token in added
            # The library's view, not the tokenizer's: it treats further tokens as special.
            if self._tokenizer.is_special_token(int(token["id"]))
        }
        by_length = sorted(self._special, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, by_length)) + ")") if by_length else None

    def has_special(self, text: str) -> bool:
        return text in self._special

    def begins_special(self, text: str) -> bool:
        """Return whether `text` begins with a special token, which cannot merge with text before it."""
        return any(text.startswith(token) for token in self._special)

    def literal(self, text: str) -> str:
        """Return `text` as it is written in a rule, with special tokens by their ids: the model does not
        write them as text."""
        if not text:
            return ""
        parts = [text] if self._split is None else self._split.split(text)
        return " ".join(
            f"<[{self._special[part]}]>" if part in self._special else quoted(part) for part in parts if part
        )

    def split_special(self, text: str) -> tuple[str, str]:
        """Return `text` up to its first special token, and the rest."""
        found = None if self._split is None else self._split.search(text)
        return (text, "") if found is None else (text[: found.start()], text[found.start() :])

    def complaint(self, grammar: str) -> str | None:
        """Return the error of a grammar, or None if it compiles, up to the first mask and with the engine's
        limits. Releases the GIL."""
        return on_deep_stack(lambda: self._complaint(grammar), TRIED_BYTES)

    def _complaint(self, grammar: str) -> str | None:
        try:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
            if not matcher.is_error():
                matcher.compute_bitmask()
            error = _DETAILS.split(matcher.get_error(), maxsplit=1)[0]
            return NO_TEXT if "NoExtension" in error else error or None
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            # A panic of the Rust library is not an Exception and would end the server.
            return f"the grammar library failed on it: {error}"


def quoted(text: str) -> str:
    """Return a Lark string: JSON's escapes, without escaping letters."""
    return json.dumps(text, ensure_ascii=False)
