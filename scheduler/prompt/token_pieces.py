"""Make a prompt's token ids from the ids of its pieces, which are kept: a turn tokenizes only what is new in
it.

A tokenizer first cuts a text at its added tokens and then encodes each piece by itself, so a message between
two turn marks has the same ids in every prompt. Whether that holds for a tokenizer is tried at start. Runs of
pieces from a text's beginning are kept beside the pieces, because longer texts begin with them, too.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain, pairwise, product
from threading import Lock

from scheduler.shared.token_ids import KEY_BYTES, TokenIds, compact
from scheduler.statistics import PieceStatistics

_ENTRY_BYTES = 256
"""Bytes of an entry beside its ids: key, array, links."""
_DIGEST_BYTES = 16
RUN_CHARACTERS = 1 << 13
"""The least length of a run of pieces. A turn of 100,000 tokens looks for forty runs and some pieces, not for
a thousand pieces."""
_RUN = b"run"
_TRIED_MARKS = 4
_TRIED_TEXTS = (
    "",
    " ",
    "\n",
    " \n\n  two  spaces ",
    "word",
    "word ",
    " word",
    "123",
    "e\u0301\u00e9",
    "\u4f60\u597d",
    "\U0001f469\u200d\U0001f680",
    "<|",
    "|>",
    "<",
    ">",
)


class TokenPieces:
    """Thread-safe. Forgets the pieces that were used the longest time ago."""

    def __init__(
        self,
        encode_all: Callable[[Sequence[str]], list[list[int]]],
        cuts: Mapping[str, int],
        limit_bytes: int,
        run_characters: int = RUN_CHARACTERS,
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
        self._longest = max(map(len, cuts), default=0)
        self._run_characters = run_characters
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
        *runs, rest = self._runs(text)
        ids, made_tokens = self._of_runs(runs, salt) if runs else (compact(()), 0)
        (last,), made_last = self._of_pieces([rest], salt)
        ids.extend(last)
        with self._lock:
            self._tokens += len(ids)
            self._kept_tokens += len(ids) - made_tokens - made_last
        return ids

    def encode_plain(self, text: str) -> TokenIds:
        """Return the ids of a text whose marks are ordinary text: it is cut after the first character of each
        mark. Nothing of it is kept."""
        starts = _anywhere(self._pattern).finditer(text) if self._ids else ()
        cuts = [0, *(found.start() + 1 for found in starts), len(text)]
        pieces = [text[start:end] for start, end in pairwise(cuts) if start < end]
        return compact(list(chain.from_iterable(self._encode_all(pieces))))

    def _runs(self, text: str) -> Iterator[str]:
        """Yield runs of whole pieces, and last the rest. Texts that begin alike have the same runs there."""
        start = 0
        while (end := self._boundary(text, start + self._run_characters)) is not None:
            yield text[start:end]
            start = end
        yield text[start:]

    def _boundary(self, text: str, position: int) -> int | None:
        """Return the beginning of the first mark from `position` on that no mark before it overlaps."""
        while position < len(text) and (found := self._pattern.search(text, position)):
            first = self._pattern.search(text, found.start() - self._longest + 1)
            if first is not None and first.start() == found.start():
                return found.start()
            position = found.end()
        return None

    def _of_runs(self, runs: Sequence[str], salt: str) -> tuple[TokenIds, int]:
        """Return the ids of all runs, and how many of them the tokenizer had to make."""
        secret = blake2b(salt.encode(), person=_RUN).digest()
        keys = [_key(secret, run) for run in runs]
        found = self._found(keys)
        new = {key: run for key, run in zip(keys, runs, strict=True) if key not in found}
        made, made_tokens = self._of_pieces(list(new.values()), salt)
        found |= zip(new, made, strict=True)
        with self._lock:
            for key, tokens in zip(new, made, strict=True):
                self._keep(key, tokens)
        return _joined(found[key] for key in keys), made_tokens

    def _of_pieces(self, texts: Sequence[str], salt: str) -> tuple[list[TokenIds], int]:
        """Return the ids of each text, and how many of all of them the tokenizer had to make."""
        cut = [list(self._cut(text)) for text in texts]
        secrets = {mark: _secret(salt, mark) for mark in {mark for pieces in cut for mark, _ in pieces}}
        keys = [[_key(secrets[mark], piece) for mark, piece in pieces] for pieces in cut]
        together = list(chain.from_iterable(keys))
        found = self._found(together)
        new = {
            key: piece
            for key, piece in zip(together, chain.from_iterable(cut), strict=True)
            if key not in found
        }
        made = self._encoded(list(new.values()))
        found |= zip(new, made, strict=True)
        with self._lock:
            for key, tokens in zip(new, made, strict=True):
                self._keep(key, tokens)
        return [_joined(found[key] for key in of_one) for of_one in keys], sum(map(len, made))

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


def _joined(parts: Iterable[TokenIds]) -> TokenIds:
    ids = compact(())
    for part in parts:
        ids.extend(part)
    return ids


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
