"""Bodies that ask a model for numbers of texts and for no text: embeddings, rankings, scores, decisions.

Each text is a request to the scheduler of its own, which ends with its prefill.
"""

from __future__ import annotations

import secrets
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

from api.access.identity import Caller
from api.answers.blocks import all_finished
from api.dialects.json_route import BodyWork
from api.dialects.openai.schema import QueueFields
from api.served_models import Served
from scheduler.events import Finished
from scheduler.request import GenerationRequest

_Text = TypeVar("_Text")


class ReadingRequest(QueueFields):
    """What all these bodies have."""

    id_prefix: ClassVar[str]
    """The beginning of the answer's id."""

    model: str | None = None


async def read(
    served: Served,
    caller: Caller,
    body: ReadingRequest,
    work: BodyWork,
    texts: Sequence[_Text],
    request_of: Callable[[_Text], GenerationRequest],
    field: str,
) -> tuple[str, list[Finished]]:
    """Return the answer's id, and how the request of each text ended, in their order. What the caller and
    the body say of all of them is added to `request_of`'s; `field` is the texts' in the body. Raise
    SchedulerError."""
    public_id = f"{body.id_prefix}-{secrets.token_hex(12)}"
    fields = caller.fields(served.adapter, body.timeout, body.priority)
    fields |= {"public_id": public_id, "max_tokens": 0, "field": field}
    fields["cache_salt"] = body.cache_salt or ""

    async def made(start: int, end: int) -> list[GenerationRequest]:
        return await work(lambda: [replace(request_of(text), **fields) for text in texts[start:end]])

    return public_id, await all_finished(served.scheduler, len(texts), made)


def usage_object(ends: Sequence[Finished]) -> dict[str, int]:
    """Return the usage. All tokens are those of prompts, because none are generated."""
    tokens = sum(end.usage.prompt_tokens for end in ends)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def numbers(vector: bytes) -> list[float]:
    """Return the numbers of little-endian float32. Each is exactly one of Python's."""
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
