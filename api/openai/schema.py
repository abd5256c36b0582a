"""The bodies of the OpenAI API that we accept. What we do not honour is not here, so it is refused by
name; a field whose neutral value changes nothing is accepted with that value only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from api.identity import MAX_TIMEOUT_SECONDS
from scheduler.request import PRIORITIES

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_BIASES = 1024
MAX_SEED = 2**64 - 1
MAX_SALT_CHARACTERS = 256


class _Body(BaseModel):
    # `allow_inf_nan`: JSON as Python reads it knows NaN, and NaN passes no comparison that would refuse it.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class TextPart(_Body):
    type: Literal["text"]
    text: str


class ChatMessage(_Body):
    """A message as the chat templates take it. `developer` is OpenAI's newer name for `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.content is None and not self.tool_calls:
            raise ValueError("a message needs content")
        return self


class StreamOptions(_Body):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class TextFormat(_Body):
    type: Literal["text"]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]],
    Field(max_length=MAX_STOPS),
    BeforeValidator(_listed),
]


class ChatCompletionRequest(_Body):
    """`POST /v1/chat/completions`. The extra sampling fields are spelled as vLLM spells them."""

    messages: list[ChatMessage] = Field(min_length=1)
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), le=MAX_SEED)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, max_length=MAX_BIASES
    )
    stop: Stop | None = None
    ignore_eos: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    # vLLM's names and sign: lower is served first. Few bands, so that aging brings each to the top in time.
    priority: int = Field(default=0, ge=PRIORITIES.start, le=PRIORITIES.stop - 1)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_SALT_CHARACTERS)
    timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)

    # Neutral values only, until what they would change exists.
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    response_format: TextFormat | None = None
    tool_choice: Literal["none"] | None = None
    store: Literal[False] | None = None
    # Carried by clients, meant for the provider's own bookkeeping: without effect here.
    user: str | None = None
    metadata: dict[str, Any] | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _no_override(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        ours = {"messages", "conversation", "tokenize", "add_generation_prompt", "chat_template", "tools"}
        for name in value or {}:
            if name in ours or name.startswith("return_"):
                raise ValueError(f"{name!r} is not for requests to set")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ChatCompletionRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise ValueError("max_tokens and max_completion_tokens differ; give one")
        return self
