"""The accepted bodies of the OpenAI API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from api.access.identity import MAX_TIMEOUT_SECONDS
from api.bodies.body import Body
from api.bodies.fields import AtMost, JsonObject, Listed, Partly, WithoutEffect
from api.bodies.sampling_values import SamplingFields
from api.dialects.openai.messages import ChatMessage
from api.dialects.openai.structured import NO_VERBOSITY, StructuredFields
from api.dialects.openai.thinking import ThinkingFields
from api.dialects.openai.tools import CHOICE, MAX_TOOLS, AnyTool, Choice, CustomTool
from api.dialects.spellings import BoundFields
from scheduler.request import (
    MAX_TOP_LOGPROBS,
    PRIORITIES,
)

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_BIASES = 1024
MAX_CHOICES = 128
MAX_STOP_TOKENS = 256

BOOKKEEPING = "for the provider's accounting"
_RETENTION = "the prefix cache keeps every prefix until it needs the memory"
NO_PADDING = "stream events are not padded"
_PREDICTION = WithoutEffect("drafts are the prompt's", named_unless=())
_MAX_SALT_CHARACTERS = 256


class StreamOptions(Body):
    include_usage: StrictBool = False
    include_obfuscation: Annotated[StrictBool, WithoutEffect(NO_PADDING)] = False
    # vLLM's: with `include_usage`, the usage so far on every chunk.
    continuous_usage_stats: StrictBool = False


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]],
    Field(max_length=MAX_STOPS, fail_fast=True),
    BeforeValidator(_listed),
]


class RepetitionDetection(Body):
    """vLLM's: an answer is over when a phrase of these sizes, in tokens, has come `min_count` times."""

    max_pattern_size: int = Field(default=0, ge=0, le=1024)
    min_pattern_size: int = Field(default=0, ge=0)
    min_count: int = Field(default=0, ge=0, le=1024)

    @model_validator(mode="after")
    def _some_phrase(self) -> RepetitionDetection:
        if self.max_pattern_size and self.min_count < 2:
            raise ValueError("min_count is at least 2 where max_pattern_size is not 0")
        if self.max_pattern_size and self.min_pattern_size > self.max_pattern_size:
            raise ValueError("min_pattern_size is at most max_pattern_size")
        return self


class QueueFields(Body):
    """How a request waits, and with whom it shares prefixes, by vLLM's names."""

    # vLLM's sign, too: lower is served first. Few bands, so that aging brings each to the top in time.
    priority: int = Field(default=0, ge=PRIORITIES.start, le=PRIORITIES.stop - 1)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=_MAX_SALT_CHARACTERS)
    timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)
    user: Annotated[str | None, WithoutEffect(BOOKKEEPING)] = None


class DecodingFields(BoundFields, StructuredFields, SamplingFields, QueueFields):
    """How tokens are chosen and where they end, the same in all of OpenAI's ways of asking."""

    logit_bias: Annotated[dict[int, Annotated[float, Field(ge=-100, le=100)]], AtMost(MAX_BIASES)] | None = (
        None
    )
    stop: Stop | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] | None = None
    include_stop_str_in_output: StrictBool = False
    ignore_eos: StrictBool = False
    min_tokens: int = Field(default=0, ge=0)
    repetition_detection: RepetitionDetection | None = None


class ChatFields(ThinkingFields):
    """What chats have in common, in chat completions and responses."""

    tool_choice: Annotated[Choice | None, CHOICE] = None
    parallel_tool_calls: StrictBool | None = None
    safety_identifier: Annotated[str | None, WithoutEffect(BOOKKEEPING)] = None
    service_tier: Annotated[
        Literal["auto", "default"] | None, WithoutEffect("one engine has one service tier")
    ] = None
    prompt_cache_key: Annotated[
        str | None, WithoutEffect("the prefix cache finds shared prefixes by their tokens")
    ] = None
    prompt_cache_retention: Annotated[Any, WithoutEffect(_RETENTION)] = None
    prompt_cache_options: Annotated[Any, WithoutEffect(_RETENTION, named_unless=())] = None


class CompletionFields(DecodingFields):
    """What chat completions and completions have in common."""

    model: str | None = None
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)

    @model_validator(mode="after")
    def _streams_what_has_options(self) -> CompletionFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self


class ChatCompletionRequest(ChatFields, CompletionFields):
    """`POST /v1/chat/completions`."""

    bulk = ("messages", "tools")

    messages: Listed[ChatMessage] = Field(min_length=1)
    logprobs: StrictBool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Annotated[
        Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None,
        Partly(
            "functions and custom tools; the server runs no tools of its own, and names those it leaves out"
        ),
    ] = None
    continue_final_message: StrictBool = False
    add_generation_prompt: StrictBool | None = None
    prediction: Annotated[Any, BeforeValidator(lambda given: None), _PREDICTION] = None

    # OpenRouter's and vLLM's.
    include_reasoning: StrictBool = True
    store: Annotated[
        StrictBool | None, WithoutEffect("the server stores no chat completions", named_unless=(False,))
    ] = None
    metadata: Annotated[JsonObject | None, WithoutEffect(BOOKKEEPING)] = None
    verbosity: Annotated[str | None, NO_VERBOSITY] = None

    @property
    def continues(self) -> bool:
        """Return whether the answer goes on with the last message, in vLLM's words, or DeepSeek's and
        Mistral's."""
        last = bool(self.messages and self.messages[-1].prefix)
        return self.continue_final_message or self.add_generation_prompt is False or last

    @property
    def shows_reasoning(self) -> bool:
        return self.include_reasoning and not (self.reasoning and self.reasoning.exclude)

    @property
    def custom_names(self) -> frozenset[str]:
        """Return the names of the tools that are called with one text."""
        return frozenset(tool.custom.name for tool in self.tools or () if isinstance(tool, CustomTool))

    @model_validator(mode="after")
    def _consistent(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.continues:
            if self.add_generation_prompt:
                raise ValueError("continue_final_message needs add_generation_prompt: false")
            if not self.messages or self.messages[-1].role != "assistant" or self.messages[-1].calls:
                raise ValueError("only a last message that is the assistant's text can be continued")
        return self
