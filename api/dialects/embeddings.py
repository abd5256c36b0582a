"""`/v1/embeddings`: vectors in OpenAI's form, numbers or base64 of their bytes, which its own client asks
for. The fields `id` and `created` are vLLM's.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import AfterValidator, Field, field_validator

from api.access.auth import CallerOf
from api.bodies.json_pieces import JsonList
from api.bodies.unsupported import EMBEDDINGS
from api.dialects.completions.schema import PromptItem, in_list
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.readings import ReadingRequest, numbers, read, usage_object
from api.served_models import ServedModels
from scheduler.events import Finished
from scheduler.request import GenerationRequest, TextPrompt, TokenPrompt

Encoding: TypeAlias = Literal["float", "base64"]
MAX_INPUTS = 2048
"""OpenAI's own bound."""
MAX_NAME_CHARACTERS = 256


def _not_empty(items: list[PromptItem]) -> list[PromptItem]:
    if not all(items):
        raise ValueError("a text is empty")
    return items


class EmbeddingRequest(ReadingRequest):
    """`POST /v1/embeddings`."""

    unsupported = EMBEDDINGS
    id_prefix = "embd"

    input: Annotated[list[PromptItem], in_list(MAX_INPUTS), AfterValidator(_not_empty)]
    encoding_format: Encoding = "float"
    dimensions: int | None = Field(default=None, ge=1, le=2**31 - 1)
    # vLLM's name; -1 is the model's context.
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    # Text Embeddings Inference's name: one of the model's own prompts goes before each text.
    prompt_name: str | None = Field(default=None, max_length=MAX_NAME_CHARACTERS)

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _leaves_something(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("it must be -1, for the model's context, or at least 1")
        return value


def embedding_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/v1/embeddings", response_model=None)
    async def embeddings(body: Validated[EmbeddingRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """A vector of each text."""
        served, created = models.check(body.model), int(time.time())
        before = "" if served.embedder is None else served.embedder.text_before(body.prompt_name)
        cut = None if body.truncate_prompt_tokens is None else max(0, body.truncate_prompt_tokens)

        def request_of(item: PromptItem) -> GenerationRequest:
            """Those for a model that is no embedder are refused by its scheduler."""
            return GenerationRequest(
                public_id="",
                prompt=TextPrompt(before + item) if isinstance(item, str) else TokenPrompt(tuple(item)),
                kind="embedding",
                dimensions=body.dimensions or 0,
                truncate_tokens=cut,
            )

        public_id, ends = await read(served, caller, body, work, body.input, request_of, "input")
        vectors = {
            "id": public_id,
            "object": "list",
            "created": created,
            "model": served.name,
            "data": JsonList(lambda: _entries(ends, body.encoding_format)),
            "usage": usage_object(ends),
        }
        return work.response(vectors)

    return router


def _entries(ends: Sequence[Finished], encoding: Encoding) -> Iterator[bytes]:
    for index, end in enumerate(ends):
        vector = base64.b64encode(end.vector).decode() if encoding == "base64" else numbers(end.vector)
        yield msgspec.json.encode({"object": "embedding", "index": index, "embedding": vector})
