"""`/tokenize` and `/detokenize`, compatible with vLLM; below `/v1` too, as SGLang and gateways have them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import Field, StrictBool, ValidationError, model_validator

from api.access.auth import CallerOf
from api.bodies.body import Body
from api.bodies.fields import JsonObject, Listed, Partly
from api.bodies.json_pieces import JsonList
from api.bodies.unsupported import TOKENIZE
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.openai.decode import generation_request
from api.dialects.openai.messages import ChatMessage
from api.dialects.openai.schema import ChatCompletionRequest
from api.dialects.openai.tools import MAX_TOOLS, AnyTool
from api.options.model_defaults import NEUTRAL, Defaults
from api.served_models import ServedModels
from scheduler.request import Prompt, TextPrompt
from scheduler.shared.token_ids import TokenIds

MAX_TOKENS = 1 << 20


class TokenizeRequest(Body):
    """A text, or messages as in chat completions."""

    bulk = ("messages",)
    unsupported = TOKENIZE

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Listed[ChatMessage], Field(min_length=1)] | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    chat_template_kwargs: JsonObject | None = None
    continue_final_message: StrictBool = False
    add_generation_prompt: StrictBool | None = None
    add_special_tokens: Annotated[
        StrictBool | None, Partly("not true with messages: the chat template adds the special tokens")
    ] = None

    @model_validator(mode="after")
    def _is_one_prompt(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("send either prompt or messages")
        if self.messages is not None and self.add_special_tokens:
            raise ValueError("add_special_tokens: the chat template adds the special tokens of messages")
        try:
            self.neutral()
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
        return self

    def neutral(self, defaults: Defaults = NEUTRAL) -> Prompt:
        if self.prompt is not None:
            return TextPrompt(self.prompt, self.add_special_tokens is not False)
        assert self.messages is not None
        chat = ChatCompletionRequest(
            messages=self.messages,
            tools=self.tools,
            chat_template_kwargs=self.chat_template_kwargs,
            continue_final_message=self.continue_final_message,
            add_generation_prompt=self.add_generation_prompt,
        )
        return generation_request(chat, defaults).prompt


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_TOKENS, fail_fast=True)]


def tokenization_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["tokenization"], route_class=JsonRoute)

    @router.post("/v1/tokenize", response_model=None)
    @router.post("/tokenize", response_model=None)
    async def tokenize(body: Validated[TokenizeRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """The ids that the engine would get for this prompt."""
        served = models.check(body.model)
        prompt = await work.decode(body, partial(TokenizeRequest.neutral, defaults=served.defaults))
        tokens = await served.scheduler.tokenize(prompt, caller.tenant)
        return work.response(
            {
                "count": len(tokens),
                "max_model_len": served.scheduler.context_tokens,
                "tokens": JsonList(partial(_runs, tokens)),
                "token_strs": None,
            }
        )

    @router.post("/v1/detokenize", response_model=None)
    @router.post("/detokenize", response_model=None)
    async def detokenize(body: Validated[DetokenizeRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """Return the text of these ids, including special tokens."""
        served = models.check(body.model)
        text = await served.scheduler.off_loop.detokenize(body.tokens, "tokens", caller.tenant)
        return work.response({"prompt": text}, repeats=True)

    return router


_RUN_TOKENS = 4096
_json = msgspec.json.Encoder()


def _runs(tokens: TokenIds) -> Iterator[bytes]:
    """Yield the ids as entries of a JSON list, many at once: each by itself would take longer than all
    else."""
    for start in range(0, len(tokens), _RUN_TOKENS):
        yield _json.encode(tokens[start : start + _RUN_TOKENS].tolist())[1:-1]
