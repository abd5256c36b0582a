"""The accepted body of OpenAI's embeddings API, and of what vLLM adds to it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, PlainValidator, field_validator

from api.bodies.unsupported import EMBEDDINGS
from api.dialects.completions.schema import PromptItem, prompt_items
from api.dialects.readings import ReadingRequest

Encoding: TypeAlias = Literal["float", "base64"]
MAX_INPUTS = 2048
"""OpenAI's own bound."""
MAX_NAME_CHARACTERS = 256


def _inputs(value: Any) -> list[PromptItem]:
    items = prompt_items(value, MAX_INPUTS)
    if not all(items):
        raise ValueError("a text is empty")
    return items


class EmbeddingRequest(ReadingRequest):
    """`POST /v1/embeddings`."""

    unsupported = EMBEDDINGS
    id_prefix = "embd"

    input: Annotated[
        list[PromptItem],
        PlainValidator(_inputs, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]
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
