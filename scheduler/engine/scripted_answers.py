"""What the scripted engine answers, by arithmetic on the prompt."""

from __future__ import annotations

import math
import struct
import zlib
from array import array
from collections.abc import Sequence

from scheduler.shared.messages import LogprobsOut

_FIRST_TOKEN = 256
"""Ids below are single bytes in our tokenizers; above them any sequence is readable text."""
_SPECIAL_TOKENS = 64
_DIMENSIONS = 16
"""Dimensions of a vector."""


def scripted_token(prompt_digest: int, position: int, vocabulary: int) -> int:
    """Return the token at `position` (from 0) of the answer to a prompt with this digest."""
    span = max(1, vocabulary - _FIRST_TOKEN - _SPECIAL_TOKENS)
    return _FIRST_TOKEN + (prompt_digest + position * 2654435761 // 7) % span


def scripted_logprobs(token: int, position: int, top: int, vocabulary: int) -> LogprobsOut:
    """Return log-probabilities: the likeliest token has half of all probability, the next one half of the
    rest, and so on; which of the first four `token` is depends on its position, and their ids are
    consecutive."""
    rank = position % 4
    best = [((token - rank + i) % vocabulary, -math.log(2.0) * (i + 1)) for i in range(max(top, 4))]
    return LogprobsOut(best[rank][1], tuple(best[:top]))


def scripted_vector(prompt_digest: int, dimensions: int) -> bytes:
    """Return the vector of a prompt with this digest: numbers of 0 to 1."""
    size = dimensions or _DIMENSIONS
    return struct.pack(
        f"<{size}f", *(math.fmod(prompt_digest * 0.6180339887 * (at + 1), 1.0) for at in range(size))
    )


def scripted_labels(prompt_digest: int, labels: int) -> bytes:
    """Return log-probabilities of labels: one of them has half of all probability, the others 0.4 together;
    which one depends on the digest. The sum that made them is 1."""
    best, rest = prompt_digest % labels, 0.4 / max(1, labels - 1)
    return struct.pack(f"<{labels + 1}f", *(math.log(0.5 if at == best else rest) for at in range(labels)), 0)


def digest(prompt: Sequence[int], adapter: str = "") -> int:
    """Return a prompt's digest. `adapter`: the key of its LoRA adapter, which changes every answer."""
    return zlib.crc32(array("I", prompt).tobytes() + adapter.encode())
