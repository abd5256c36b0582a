"""`/v1/cache`: what the prefix caches hold; warm and clear them.

Only operators may use it: a report shows how often which prompts are sent, and a held prefix takes memory
from others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse
from pydantic import Field, StrictInt, model_validator

from api.access.auth import CallerOf, operator
from api.access.identity import Caller
from api.admin.operations import ModelName
from api.answers.whole_answer import whole_answer
from api.bodies.fields import Listed
from api.dialects.json_route import BodyWork, BodyWorkOf, JsonRoute, Validated
from api.dialects.openai.decode import generation_request
from api.dialects.openai.messages import ChatMessage
from api.dialects.openai.schema import ChatCompletionRequest
from api.served_models import Served, ServedModels
from scheduler.engines.together import together
from scheduler.request import PRIORITIES, GenerationRequest, Hold, TextPrompt, TokenPrompt
from scheduler.shared.messages import Inspection

MAX_HOLD_SECONDS = 7 * 86_400.0
MAX_PROMPT_TOKENS = 1 << 20
_Ids = Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(max_length=MAX_PROMPT_TOKENS, fail_fast=True)]


class PrefixRequest(ChatCompletionRequest):
    """A prompt: messages as in chat completions, or the text or the ids as they are."""

    messages: Listed[ChatMessage] = Field(default_factory=list)
    prompt: str | _Ids | None = None

    @model_validator(mode="after")
    def _is_one_prompt(self) -> PrefixRequest:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("send either prompt or messages")
        return self


def cache_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["operations"], route_class=JsonRoute, dependencies=[Depends(operator)])

    @router.get("/v1/cache")
    async def cache(
        model: ModelName = None,
        top: Annotated[int, Query(ge=0, le=1000)] = 10,
        text_tokens: Annotated[int, Query(ge=0, le=4096)] = 0,
    ) -> JSONResponse:
        """The contents of a model's prefix caches, all engines together and, if there are several, each by
        its name in `engines`. `text_tokens`: how many tokens of each shared prefix to return as text; the
        text is part of clients' prompts."""
        scheduler = models.model(model).scheduler
        found = await scheduler.operations.inspect_engines(top=top, head_tokens=text_tokens)
        inspection = together(found.values(), top)
        prefixes = inspection.cache.shared_prefixes if inspection.cache and text_tokens else ()
        texts = [await scheduler.off_loop.detokenize(prefix.head, "text_tokens", "") for prefix in prefixes]
        body = cache_object(inspection, texts)
        if len(scheduler.pool.names) > 1:
            body["engines"] = {name: cache_object(one) for name, one in found.items()}
        return JSONResponse(body)

    @router.post("/v1/cache")
    async def warm(
        body: Validated[PrefixRequest],
        caller: CallerOf,
        work: BodyWorkOf,
        keep_seconds: Annotated[float, Query(gt=0, le=MAX_HOLD_SECONDS)] = 300.0,
    ) -> dict[str, Any]:
        """Prefill a prompt at the lowest priority, and hold it for `keep_seconds` in the engine that computed
        it; where the prefix cache has no room for it, the answer's `keep_seconds` is 0. Fields that are about
        the answer have no effect."""
        served = models.check(body.model)
        request = await prompt_of(body, served, caller, work)
        answer = await whole_answer(served.scheduler, [replace(request, holds=(Hold(None, keep_seconds),))])
        return {
            "prompt_tokens": answer.usage.prompt_tokens,
            "cached_tokens": answer.usage.cached_tokens,
            "keep_seconds": 0.0 if answer.choices[0].end.hold_refusal else keep_seconds,
        }

    @router.delete("/v1/cache")
    async def clear_cache(model: ModelName = None) -> JSONResponse:
        """Evict every prefix of a model that no running request uses, in all its engines."""
        inspection = await models.model(model).scheduler.operations.inspect_cache(clear=True)
        return JSONResponse({"freed_bytes": inspection.freed_bytes, **cache_object(inspection)})

    return router


async def prompt_of(body: PrefixRequest, served: Served, caller: Caller, work: BodyWork) -> GenerationRequest:
    """Return a request that prefills the prompt of `body`, at the lowest priority, and generates nothing."""
    given = body.prompt
    decode = partial(generation_request, defaults=served.defaults, caller=caller, adapter=served.adapter)
    decoded = await work.decode(body, decode)
    # The grammar, the choices and the like concern the answer, and there is none.
    asked = replace(decoded, max_tokens=0, min_tokens=0, choices=1, structure=None, top_logprobs=None)
    asked = replace(asked, priority=PRIORITIES.stop - 1)
    if given is None:
        return asked
    prompt = TextPrompt(given) if isinstance(given, str) else TokenPrompt(tuple(given))
    return replace(asked, prompt=prompt)


def cache_object(inspection: Inspection, texts: Sequence[str] = ()) -> dict[str, Any]:
    """Return the cache report. `texts` are the first tokens of each shared prefix as text, if requested."""
    report = inspection.cache
    if report is None:
        return {"enabled": False}
    prefixes: list[dict[str, Any]] = [
        {"tokens": prefix.tokens, "references": prefix.references, "hits": prefix.hits}
        for prefix in report.shared_prefixes
    ]
    for prefix, text in zip(prefixes, texts, strict=False):
        prefix["text"] = text
    plain = {name: getattr(report, name) for name in report.__struct_fields__ if name != "shared_prefixes"}
    disk = None if inspection.disk is None else msgspec.structs.asdict(inspection.disk)
    return {"enabled": True, **plain, "shared_prefixes": prefixes, "disk": disk}
