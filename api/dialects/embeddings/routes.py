"""`/v1/embeddings`, which makes one request to the scheduler for each text of a body."""

from __future__ import annotations

import secrets
import time
from functools import partial

from fastapi import APIRouter
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.access.identity import Caller
from api.answers.blocks import all_finished
from api.dialects.completions.schema import PromptItem
from api.dialects.embeddings.encode import embeddings_object
from api.dialects.embeddings.schema import EmbeddingRequest
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.served_models import Served, ServedModels
from scheduler.errors import InvalidRequest
from scheduler.prompt.embedder import Embedder
from scheduler.request import GenerationRequest, TextPrompt, TokenPrompt


def embedding_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["openai"], route_class=JsonRoute)

    @router.post("/v1/embeddings", response_model=None)
    async def embeddings(body: Validated[EmbeddingRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """A vector of each text."""
        served, encoding = models.check(body.model), body.encoding_format
        public_id, created = f"embd-{secrets.token_hex(12)}", int(time.time())

        async def made(start: int, end: int) -> list[GenerationRequest]:
            return await work(partial(embedding_requests, body, served, caller, public_id, start, end))

        ends = await all_finished(served.scheduler, len(body.input), made)
        return work.response(embeddings_object(public_id, created, served.name, ends, encoding))

    return router


def embedding_requests(
    body: EmbeddingRequest, served: Served, caller: Caller, public_id: str, start: int, end: int
) -> list[GenerationRequest]:
    """Return one request for each of these texts. Those for a model that is no embedder are refused by its
    scheduler. Raise InvalidRequest."""
    before = _prompt(body.prompt_name, served.embedder)
    return [
        GenerationRequest(
            public_id=public_id,
            prompt=_text(item, before),
            kind="embedding",
            max_tokens=0,
            dimensions=body.dimensions or 0,
            truncate_tokens=_truncated(body.truncate_prompt_tokens),
            **caller.fields(served.adapter, body.timeout, body.priority),
        )
        for item in body.input[start:end]
    ]


def _text(item: PromptItem, before: str) -> TextPrompt | TokenPrompt:
    """Return the prompt: `before` and the text, or token ids as they are."""
    return TextPrompt(before + item) if isinstance(item, str) else TokenPrompt(tuple(item))


def _truncated(tokens: int | None) -> int | None:
    return None if tokens is None else max(0, tokens)


def _prompt(name: str | None, embedder: Embedder | None) -> str:
    """Return the text before each input."""
    if embedder is None:
        return ""
    if name is None:
        return embedder.default_prompt
    if name not in embedder.prompts:
        known = ", ".join(map(repr, embedder.prompts)) or "none"
        raise InvalidRequest(f"the model has no prompt {name!r}; it has {known}", param="prompt_name")
    return embedder.prompts[name]
