"""Names of prefixes on disk: content keys in a chain, so that a name depends on all the tokens before it.

Pure arithmetic over token ids. A block is BLOCK_TOKENS consecutive tokens; its key depends on every token up
to its end, on the salt and on the model. The key of a snapshot (the state right after any position) depends
on the chain up to the block boundary before it. This module knows only the form of file names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from scheduler.shared.token_ids import KEY_BYTES as TOKEN_BYTES
from scheduler.shared.token_ids import compact

BLOCK_TOKENS: Final = 256
FORMAT_VERSION: Final = 1

_KEY_BYTES = 20  # A collision takes 2^160 trials on purpose and never happens by chance.

Key: TypeAlias = bytes
Kind: TypeAlias = Literal["b", "s"]
"""A block; a snapshot, which needs the blocks before it."""


class Place(NamedTuple):
    """One file's place in a chain: all that its name contains. A tuple, because it is looked up 400 times for
    a prompt of 100,000 tokens."""

    key: Key
    predecessor: Key
    """The chain's key at the block boundary before it."""
    kind: Kind
    position: int
    """The tokens up to its end."""

    @property
    def tokens_before(self) -> int:
        """Return the number of tokens whose blocks must be there for this file to be of use."""
        end = self.position - BLOCK_TOKENS if self.kind == "b" else self.position
        return end - end % BLOCK_TOKENS

    @property
    def file_name(self) -> str:
        keys = f"{self.key.hex()}-{self.predecessor.hex()}"
        return f"{keys}-{self.kind}{self.position}.kv{FORMAT_VERSION}.safetensors"


_FILE_NAME = re.compile(
    r"([0-9a-f]{40})-([0-9a-f]{40})-([bsl])([1-9][0-9]{0,11})\.kv([0-9]{1,4})\.safetensors"
)


def parse(file_name: str) -> Place | Literal["stranger", "other format"]:
    """Parse a file's name into its place, or return whether it is not ours or of another format version."""
    found = _FILE_NAME.fullmatch(file_name)
    if found is None:
        return "stranger"
    key, predecessor, kind, position, version = found.groups()
    if int(version) != FORMAT_VERSION or kind == "l":  # Snapshots without blocks, until c7b6f3e5.
        return "other format"
    place = Place(bytes.fromhex(key), bytes.fromhex(predecessor), cast(Kind, kind), int(position))
    whole = place.kind != "b" or place.position % BLOCK_TOKENS == 0
    return place if whole else "stranger"


class Chain:
    """The keys of one token sequence under one salt, each computed once, when first used.

    Takes a copy of the tokens (0.02 ms for 100k in an `array("I")`). One thread at a time uses it.
    """

    __slots__ = ("_blocks", "_root", "_tokens", "tokens")

    def __init__(self, fingerprint: str, salt: str, tokens: Sequence[int]) -> None:
        """`fingerprint` is the model's (`model_fingerprint.py`). Token ids fit in 32 bits."""
        self._tokens = compact(tokens).tobytes()  # Little-endian, as every machine that MLX runs on.
        self.tokens: int = len(tokens)
        self._root = _digest("root", fingerprint.encode(), salt.encode("utf-8", "surrogatepass"))
        self._blocks: list[Place] = []

    def key(self, blocks: int) -> Key:
        """Return the key of the first `blocks` blocks; of 0: the root for this salt and model."""
        return self.block(blocks * BLOCK_TOKENS).key if blocks else self._root

    def block(self, end: int) -> Place:
        """Return the block whose last token is at `end` - 1; `end` is a positive multiple of BLOCK_TOKENS."""
        count, rest = divmod(end, BLOCK_TOKENS)
        assert rest == 0 < count <= self.tokens // BLOCK_TOKENS, "no block ends here"
        while len(self._blocks) < count:
            before = self.key(len(self._blocks))
            start = len(self._blocks) * BLOCK_TOKENS
            key = _digest("block", before, self._run(start, start + BLOCK_TOKENS))
            self._blocks.append(Place(key, before, "b", start + BLOCK_TOKENS))
        return self._blocks[count - 1]

    def blocks(self, limit: int) -> Iterator[Place]:
        """Yield the whole blocks of the first `limit` tokens, computed when they are asked for."""
        for number in range(min(limit, self.tokens) // BLOCK_TOKENS):
            known = number < len(self._blocks)
            yield self._blocks[number] if known else self.block((number + 1) * BLOCK_TOKENS)

    def snapshot(self, position: int) -> Place:
        """Return the place of the state right after the first `position` tokens, 0 < position."""
        assert 0 < position <= self.tokens, "the chain has no such position"
        before = self.key(position // BLOCK_TOKENS)
        rest = self._run(position - position % BLOCK_TOKENS, position)
        return Place(_digest("snapshot", before, rest), before, "s", position)

    def path(self, place: Place) -> tuple[Place, ...]:
        """Return the blocks that a place of this chain needs, from the root on, and the place."""
        return (*self._blocks[: place.tokens_before // BLOCK_TOKENS], place)

    def _run(self, start: int, end: int) -> bytes:
        return self._tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]


def _digest(kind: str, *parts: bytes) -> Key:
    """Return the key of these parts. Each is preceded by its length: no two lists of parts give the same
    bytes."""
    digest = blake2b(digest_size=_KEY_BYTES, person=kind.encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def states_fingerprint(model: str, weights_dtype: str, software: str) -> str:
    """Return 64 hex digits for the states that this process computes with a model. `model`: its fingerprint;
    `weights_dtype`: the type that load converts weights to, resolved (never "auto"); `software`: versions of
    mlx-lm and of everything else that computes, and the device."""
    parts = (f"blocks of {BLOCK_TOKENS}", model, weights_dtype, software)
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()
