"""Vectors in OpenAI's form: numbers, or base64 of their bytes, which its own client asks for."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from scheduler.events import Finished, usage_of_all

Encoding: TypeAlias = Literal["float", "base64"]


def embeddings_object(
    public_id: str, created: int, model: str, ends: Sequence[Finished], encoding: Encoding
) -> dict[str, Any]:
    """`id` and `created` are vLLM's."""
    return {
        "id": public_id,
        "object": "list",
        "created": created,
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(end.vector, encoding)}
            for index, end in enumerate(ends)
        ],
        "usage": usage_object(ends),
    }


def usage_object(ends: Sequence[Finished]) -> dict[str, int]:
    """Nothing is written, so all tokens are those of prompts."""
    tokens = usage_of_all([end.usage for end in ends]).prompt_tokens
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _encoded(vector: bytes, encoding: Encoding) -> str | msgspec.Raw:
    """Numbers as their JSON text: thousands of vectors as lists would take ten times its memory."""
    if encoding == "base64":
        return base64.b64encode(vector).decode()
    return msgspec.Raw(msgspec.json.encode(numbers(vector)))


def numbers(vector: bytes) -> list[float]:
    """Of little-endian float32. Each is exactly one of Python's."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
