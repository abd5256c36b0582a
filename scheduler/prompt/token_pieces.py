"""Make a prompt's token ids from the ids of its pieces, which are kept: a turn tokenizes only what is new in
it.

A tokenizer first cuts a text at its added tokens and then encodes each piece by itself, so a message between
two turn marks has the same ids in every prompt. Whether that holds for a tokenizer is tried at start.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        cuts: Mapping[str, int],
        limit_bytes: int,
    ) -> None:
        """`encode_all` and `cuts` are the tokenizer's. `limit_bytes` bounds what is kept, for all salts
        together; 0 keeps nothing."""
        self._encode_all = encode_all
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._held_bytes = self._tokens = self._kept_tokens = 0
        self._lock = Lock()
        cuts = dict(cuts) if limit_bytes else {}
        self._ids = cuts
        self._pattern = _pattern(cuts)
        self.works = bool(cuts) and self._agrees()
        """Whether texts are encoded in pieces: there are marks, and all texts that were tried have the same
        ids in pieces as whole. Otherwise `encode` encodes the whole text."""

    def statistics(self) -> PieceStatistics:
        return PieceStatistics(self._tokens, self._kept_tokens, self._held_bytes)

    def encode(self, text: str, salt: str) -> TokenIds:
        """Return the ids of `text`. Only texts with equal salts share pieces, so that a client cannot learn
        from the time that it takes what others have sent. Raise what the tokenizer does."""
        if not self.works:
            return compact(self._encode_all([text])[0])
        cut = list(self._cut(text))
        secrets = {mark: _secret(salt, mark) for mark in {mark for mark, _ in cut}}
        keys = [_key(secrets[mark], piece) for mark, piece in cut]
        found = self._found(keys)
        new = {key: piece for key, piece in zip(keys, cut, strict=True) if key not in found}
        made = self._encoded(list(new.values()))
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

    def encode_plain(self, text: str) -> TokenIds:
        """Return the ids of a text whose marks are ordinary text: it is cut after the first character of each
        mark. Nothing of it is kept."""
        starts = _anywhere(self._pattern).finditer(text) if self._ids else ()
        cuts = [0, *(found.start() + 1 for found in starts), len(text)]
        pieces = [text[start:end] for start, end in pairwise(cuts) if start < end]
        return compact(list(chain.from_iterable(self._encode_all(pieces))))

    def _found(self, keys: Sequence[bytes]) -> dict[bytes, TokenIds]:
        with self._lock:
            found = {key: self._kept[key] for key in keys if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
        return found

    def _cut(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield each mark with the text behind it; the first without a mark."""
        parts = self._pattern.split(text)
        if parts[0]:
            yield "", parts[0]
        yield from zip(parts[1::2], parts[2::2], strict=True)

    def _encoded(self, pieces: Sequence[tuple[str, str]]) -> list[TokenIds]:
        """Encode each part with its mark before it, because tokenizers may treat the beginning of a text
        differently."""
        if not pieces:
            return []
        return [compact(ids) for ids in self._encode_all([mark + piece for mark, piece in pieces])]

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
        marks = list(self._ids)
        tried = [*marks[:_TRIED_MARKS], *marks[-_TRIED_MARKS:]]
        texts = [before + mark + after for mark in tried for before, after in product(_TRIED_TEXTS, repeat=2)]
        texts += [
            before + left + right for before in _TRIED_TEXTS for left, right in product(tried, repeat=2)
        ]
        cut = [list(self._cut(text)) for text in texts]
        pieces = list(dict.fromkeys(chain.from_iterable(cut)))
        try:
            whole = self._encode_all(texts)
            ids = dict(zip(pieces, self._encoded(pieces), strict=True))
        except Exception:  # With a tokenizer that fails on such texts, do without pieces.
            return False
        return all(
            list(chain.from_iterable(ids[piece] for piece in apart)) == together
            for apart, together in zip(cut, whole, strict=True)
        )


def _pattern(cuts: Mapping[str, int]) -> re.Pattern[str]:
    """Return the pattern of all marks, the longest first: tokenizers take the longest at the leftmost
    place."""
    return re.compile("(" + "|".join(re.escape(mark) for mark in sorted(cuts, key=len, reverse=True)) + ")")


def _anywhere(pattern: re.Pattern[str]) -> re.Pattern[str]:
    """Return the pattern of every place where `pattern` matches, also within another match."""
    return re.compile(f"(?={pattern.pattern})")


def _secret(salt: str, mark: str) -> bytes:
    return blake2b(f"{salt}\0{mark}".encode()).digest()


def _key(secret: bytes, piece: str) -> bytes:
    return blake2b(piece.encode(), digest_size=_DIGEST_BYTES, key=secret).digest()
