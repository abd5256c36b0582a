"""The accepted body of OpenAI's embeddings API, and of what vLLM adds to it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, field_validator

from api.access.identity import MAX_TIMEOUT_SECONDS
from api.bodies.body import Body
from api.bodies.fields import WithoutEffect
from api.bodies.unsupported import EMBEDDINGS
from api.dialects.completions.schema import PromptItem, prompt_items
from scheduler.request import PRIORITIES

MAX_INPUTS = 2048
"""OpenAI's own bound."""
MAX_NAME_CHARACTERS = 256


def _inputs(value: Any) -> list[PromptItem]:
    items = prompt_items(value, MAX_INPUTS)
    if not all(items):
        raise ValueError("a text is empty")
    return items


class EmbeddingRequest(Body):
    """`POST /v1/embeddings`."""

    unsupported = EMBEDDINGS

    model: str | None = None
    input: Annotated[
        list[PromptItem],
        PlainValidator(_inputs, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, le=2**31 - 1)
    user: Annotated[str | None, WithoutEffect("used only for the provider's own accounting")] = None

    # vLLM's names; -1 is the model's context.
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    priority: int = Field(default=0, ge=PRIORITIES.start, le=PRIORITIES.stop - 1)
    cache_salt: Annotated[str | None, WithoutEffect("embedders keep no prefixes")] = None
    timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)
    # Text Embeddings Inference's name: one of the model's own prompts goes before each text.
    prompt_name: str | None = Field(default=None, max_length=MAX_NAME_CHARACTERS)

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _leaves_something(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("it must be -1, for the model's context, or at least 1")
        return value
