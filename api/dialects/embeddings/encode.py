"""Vectors in OpenAI's form: numbers, or base64 of their bytes, which its own client asks for."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from api.bodies.json_pieces import JsonList
from scheduler.events import Finished

Encoding: TypeAlias = Literal["float", "base64"]


def embeddings_object(
    public_id: str, created: int, model: str, ends: Sequence[Finished], encoding: Encoding
) -> dict[str, Any]:
    """Return the answer. The fields `id` and `created` are vLLM's."""
    return {
        "id": public_id,
        "object": "list",
        "created": created,
        "model": model,
        "data": JsonList(lambda: _entries(ends, encoding)),
        "usage": usage_object(ends),
    }


def usage_object(ends: Sequence[Finished]) -> dict[str, int]:
    """Return the usage. All tokens are those of prompts, because none are generated."""
    tokens = sum(end.usage.prompt_tokens for end in ends)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _entries(ends: Sequence[Finished], encoding: Encoding) -> Iterator[bytes]:
    for index, end in enumerate(ends):
        vector = base64.b64encode(end.vector).decode() if encoding == "base64" else numbers(end.vector)
        yield msgspec.json.encode({"object": "embedding", "index": index, "embedding": vector})


def numbers(vector: bytes) -> list[float]:
    """Return the numbers of little-endian float32. Each is exactly one of Python's."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
