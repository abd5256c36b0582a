"""`/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from api.event_stream import EventStream
from api.identity import Identity
from api.openai.decode import generation_request
from api.openai.encode import ChunkEncoder, completion_object
from api.openai.schema import ChatCompletionRequest
from scheduler.errors import ModelNotFound
from scheduler.events import Failed, Finished, TextDelta
from scheduler.request import GenerationRequest
from scheduler.service import Scheduler


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model of this server and the names it answers to; the first is the one it gives."""

    names: tuple[str, ...]
    created: int
    context_tokens: int

    @property
    def name(self) -> str:
        return self.names[0]

    def check(self, wanted: str | None) -> None:
        """Raises ModelNotFound. A request that names no model means this one."""
        if wanted is not None and wanted not in self.names:
            served = ", ".join(repr(name) for name in self.names)
            raise ModelNotFound(f"the model {wanted!r} is not served here; there is {served}", param="model")

    def listing(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "penstock",
            # vLLM's field, which clients read.
            "max_model_len": self.context_tokens,
        }


def openai_routes(
    scheduler: Scheduler, model: ServedModel, keep_alive_seconds: float, identity: Identity
) -> APIRouter:
    router = APIRouter(tags=["openai"])

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatCompletionRequest, http: Request) -> Response:
        """A conversation's next turn, streamed as server-sent events where `stream` is true."""
        model.check(body.model)
        request = identity.identify(generation_request(body), http.headers)
        if not body.stream:
            return await _whole_answer(scheduler, request, model.name)
        created, options = int(time.time()), body.stream_options
        include_usage = options is not None and options.include_usage
        return EventStream(
            scheduler,
            request,
            lambda public_id: ChunkEncoder(public_id, created, model.name, include_usage),
            keep_alive_seconds,
        )

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The names that requests may give."""
        return {"object": "list", "data": [model.listing(name) for name in model.names]}

    # `:path`, because hub ids hold a slash.
    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """One of them."""
        model.check(name)
        return model.listing(name)

    return router


async def _whole_answer(scheduler: Scheduler, request: GenerationRequest, model: str) -> Response:
    created = int(time.time())
    text: list[str] = []
    async with scheduler.stream(request) as stream:
        async for event in stream:
            match event:
                case TextDelta(text=piece):
                    text.append(piece)
                case Finished():
                    answer = completion_object(request.public_id, created, model, "".join(text), event)
                    return JSONResponse(answer)
                case Failed(error=error):
                    raise error
                case _:
                    pass
    raise AssertionError("a stream ended without a final event")
