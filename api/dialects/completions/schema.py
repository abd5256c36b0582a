"""The accepted body of OpenAI's completions API. Unsupported fields are refused by name."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator, StrictBool, ValidationInfo, field_validator, model_validator

from api.bodies.fields import Partly, WithoutEffect, unsupported
from api.dialects.openai.schema import CompletionFields
from api.dialects.openai.thinking import MAX_THINKING_TOKENS
from api.dialects.spellings import TOKEN_BOUND, token_bound_of

MAX_PROMPTS = 256
MAX_LOGPROBS = 5
"""OpenAI's own bound in this API."""

_TOKEN_BOUND = 16

PromptItem: TypeAlias = str | list[int]


def prompt_items(value: Any, most: int) -> list[PromptItem]:
    """Validate a text, token ids, or a list of either, distinguished by the first item, as OpenAI does. Not a
    pydantic union, whose errors would name every member that does not match."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("send a text, a list of texts, a list of token ids or a list of such lists")
    if all(_is_token(entry) for entry in value):
        return [value]
    if len(value) > most:
        raise ValueError(f"send at most {most} prompts in one request")
    for entry in value:
        if not isinstance(entry, str) and not (
            isinstance(entry, list) and all(_is_token(token) for token in entry)
        ):
            raise ValueError("each prompt must be a text or a list of token ids")
    return value


def in_list(most: int) -> PlainValidator:
    forms = str | list[str] | list[int] | list[list[int]]
    return PlainValidator(partial(prompt_items, most=most), json_schema_input_type=forms)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CompletionRequest(CompletionFields):
    """`POST /v1/completions`."""

    bulk = ("prompt",)

    prompt: Annotated[list[PromptItem], in_list(MAX_PROMPTS)]
    max_tokens: Annotated[int | None, Partly("0 only with echo; 16 without any bound")] = Field(
        default=None, ge=-1
    )
    echo: StrictBool = False
    logprobs: Annotated[int | None, Partly("not with echo: true and stream: true")] = Field(
        default=None, ge=0, le=MAX_LOGPROBS
    )

    # vLLM's: what the tokenizer puts before a text, BOS for example.
    add_special_tokens: StrictBool = True
    thinking_token_budget: Annotated[
        Annotated[int, Field(ge=-1, le=MAX_THINKING_TOKENS)] | None,
        WithoutEffect("a completion has no reasoning section"),
    ] = None

    @field_validator("logprobs")
    @classmethod
    def _of_whole_echoes(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("echo") and info.data.get("stream"):
            raise unsupported("with echo: true it needs stream: false")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0 needs echo: true; without it the answer would be empty")
        return self

    @property
    def token_bound(self) -> int | None:
        """Return the bound, or None for no bound but the context. Without any, OpenAI's own default, which
        clients of this older API rely on."""
        return token_bound_of(self) if TOKEN_BOUND.asked_by(self) else _TOKEN_BOUND
