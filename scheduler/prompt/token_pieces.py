"""Make a prompt's token ids from the ids of its pieces, which are kept: a turn tokenizes only what is new in
it.

A tokenizer first cuts a text at its added tokens and then encodes each piece by itself, so a message between
two turn marks has the same ids in every prompt. Whether that holds for a tokenizer is tried at start.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from itertools import chain, pairwise, product
from threading import Lock

from scheduler.shared.token_ids import KEY_BYTES, TokenIds, compact
from scheduler.statistics import PieceStatistics

_ENTRY_BYTES = 256
"""Bytes of an entry beside its ids: key, array, links."""
_DIGEST_BYTES = 16
_TRIED_MARKS = 4
_TRIED_TEXTS = (
    *("", " ", "\n", " \n\n  two  spaces ", "word", "word ", " word", "123"),
    *("e\u0301\u00e9", "\u4f60\u597d", "\U0001f469\u200d\U0001f680", "<|", "|>", "<", ">"),
)


class TokenPieces:
    """Thread-safe. Forgets the pieces that were used the longest time ago."""

    def __init__(
        self,
        encode_all: Callable[[Sequence[str]], list[list[int]]],
        cuts: Collection[str],
        limit_bytes: int,
    ) -> None:
        """`encode_all` and `cuts` are the tokenizer's. `limit_bytes` bounds what is kept, for all salts
        together; 0 keeps nothing."""
        self._encode_all = encode_all
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._held_bytes = self._tokens = self._kept_tokens = 0
        self._lock = Lock()
        self._marks = list(cuts) if limit_bytes else []
        # The longest first: tokenizers take the longest at the leftmost place.
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._marks, key=len, reverse=True))))
        self.works = bool(self._marks) and self._agrees()
        """Whether texts are encoded in pieces: there are marks, and all texts that were tried have the same
        ids in pieces as whole. Otherwise `encode` encodes the whole text."""

    def statistics(self) -> PieceStatistics:
        return PieceStatistics(self._tokens, self._kept_tokens, self._held_bytes)

    def encode(self, text: str, salt: str) -> TokenIds:
        """Return the ids of `text`. Only texts with equal salts share pieces, so that a client cannot learn
        from the time that it takes what others have sent. Raise what the tokenizer does."""
        if not self.works:
            return compact(self._encode_all([text])[0])
        pieces, secret = self._cut(text), blake2b(salt.encode()).digest()
        keys = [blake2b(each.encode(), digest_size=_DIGEST_BYTES, key=secret).digest() for each in pieces]
        with self._lock:
            found = {key: self._kept[key] for key in keys if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
        new = {key: piece for key, piece in zip(keys, pieces, strict=True) if key not in found}
        made = [compact(each) for each in self._encode_all(list(new.values()))] if new else []
        found |= zip(new, made, strict=True)
        ids = compact(())
        for key in keys:
            ids.extend(found[key])
        with self._lock:
            for key, tokens in zip(new, made, strict=True):
                self._keep(key, tokens)
            self._tokens += len(ids)
            self._kept_tokens += len(ids) - sum(map(len, made))
        return ids

    def _cut(self, text: str) -> list[str]:
        """Return the parts of the text, each with the mark before it: tokenizers may treat the beginning of a
        text differently."""
        cuts = [0, *(found.start() for found in self._pattern.finditer(text)), len(text)]
        return [text[start:end] for start, end in pairwise(cuts) if start < end]

    def _keep(self, key: bytes, tokens: TokenIds) -> None:
        nbytes = _ENTRY_BYTES + KEY_BYTES * len(tokens)
        if key in self._kept or nbytes > self._limit_bytes:
            return
        self._kept[key] = tokens
        self._held_bytes += nbytes
        while self._held_bytes > self._limit_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._held_bytes -= _ENTRY_BYTES + KEY_BYTES * len(oldest)

    def _agrees(self) -> bool:
        """Return whether all texts that are tried have the same ids in pieces as whole."""
        tried = [*self._marks[:_TRIED_MARKS], *self._marks[-_TRIED_MARKS:]]
        texts = [before + mark + after for mark in tried for before, after in product(_TRIED_TEXTS, repeat=2)]
        texts += [
            before + left + right for before in _TRIED_TEXTS for left, right in product(tried, repeat=2)
        ]
        cut = [self._cut(text) for text in texts]
        pieces = list(dict.fromkeys(chain.from_iterable(cut)))
        try:
            whole = self._encode_all(texts)
            ids = dict(zip(pieces, self._encode_all(pieces), strict=True))
        except Exception:  # With a tokenizer that fails on such texts, do without pieces.
            return False
        return all(
            list(chain.from_iterable(ids[piece] for piece in apart)) == together
            for apart, together in zip(cut, whole, strict=True)
        )
