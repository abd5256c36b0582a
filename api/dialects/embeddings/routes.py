"""`/v1/embeddings`: vectors in OpenAI's form, numbers or base64 of their bytes, which its own client asks
for. The fields `id` and `created` are vLLM's.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence

import msgspec
from fastapi import APIRouter
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.bodies.json_pieces import JsonList
from api.dialects.completions.schema import PromptItem
from api.dialects.embeddings.schema import EmbeddingRequest, Encoding
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.readings import numbers, read, usage_object
from api.served_models import ServedModels
from scheduler.events import Finished
from scheduler.request import GenerationRequest, TextPrompt, TokenPrompt


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
