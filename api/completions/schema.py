"""The accepted body of OpenAI's completions API. Unsupported fields are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator, ValidationInfo, field_validator

from api.fields import Partly, Refused, unsupported
from api.openai.schema import SamplingFields

MAX_PROMPTS = 256
MAX_LOGPROBS = 5
"""OpenAI's own bound in this API."""

_NO_PROMPT_LOGPROBS = "the prompt's log-probabilities are not computed"

PromptItem: TypeAlias = str | list[int]


def _prompts(value: Any) -> list[PromptItem]:
    """Validate a text, token ids, or a list of either, distinguished by the first item, as OpenAI does. Not a
    pydantic union, whose errors would name every member that does not match."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("it is a text, a list of texts, a list of token ids or a list of such lists")
    if all(_is_token(entry) for entry in value):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"at most {MAX_PROMPTS} prompts go in one request")
    for entry in value:
        if not isinstance(entry, str) and not (
            isinstance(entry, list) and all(_is_token(token) for token in entry)
        ):
            raise ValueError("each prompt is a text or a list of token ids")
    return value


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CompletionRequest(SamplingFields):
    """`POST /v1/completions`."""

    prompt: Annotated[
        list[PromptItem],
        PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]
    # OpenAI's own default, which clients of this older API rely on.
    max_tokens: int | None = Field(default=16, ge=1)
    echo: bool = False
    logprobs: Annotated[int | None, Partly(f"not with echo: {_NO_PROMPT_LOGPROBS}")] = Field(
        default=None, ge=0, le=MAX_LOGPROBS
    )

    suffix: Annotated[str | None, Refused("nothing is inserted between two texts")] = None
    best_of: Annotated[int | None, Refused("every answer that is made is given; n asks for more")] = None
    add_special_tokens: Annotated[bool, Refused("a prompt is taken as it is written", neutral=(False,))] = (
        False
    )
    return_token_ids: Annotated[bool | None, Refused("answers are text", neutral=(False,))] = None

    @field_validator("logprobs")
    @classmethod
    def _of_the_answer_only(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("echo"):
            raise unsupported(f"with echo, {_NO_PROMPT_LOGPROBS}")
        return value
