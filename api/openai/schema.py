"""The accepted bodies of the OpenAI API. Unsupported fields are refused by name; a field whose neutral value
has no effect is accepted with that value only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from api.fields import AtMost, JsonObject, Listed, Refused, WithoutEffect
from api.identity import MAX_TIMEOUT_SECONDS
from api.openai.messages import Body, ChatMessage
from api.openai.structured import (
    GrammarText,
    ResponseFormat,
    SchemaOrText,
    StructuredOutputs,
    Texts,
    structure,
)
from api.openai.tools import CHOICE, MAX_TOOLS, Choice, FunctionTool
from scheduler.request import MAX_TOP_LOGPROBS, PRIORITIES

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_BIASES = 1024
MAX_SEED = 2**64 - 1
MIN_REPETITION_PENALTY = 0.01
"""Positive logits are divided by it: 0.01 already multiplies each by a hundred."""
MAX_CHOICES = 128
MAX_STOP_TOKENS = 256

_BOOKKEEPING = "the provider's own bookkeeping"
MAX_SALT_CHARACTERS = 256


_TEMPLATES_OWN = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "tokenizer_kwargs"),
        *("processor_kwargs", "sanitize_control_tokens"),
        *("raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner"),
        *("loop", "self", "caller", "varargs", "kwargs"),
    )
)
"""Reserved names for `chat_template_kwargs`: what the body has fields for or refuses, parameters of
transformers' `apply_chat_template`, and functions that templates call. Special tokens end in `_token`."""


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: Annotated[bool, Refused("nothing is padded", neutral=(False,))] = False
    continuous_usage_stats: Annotated[
        bool, Refused("usage is reported once, at the end", neutral=(False,))
    ] = False


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]],
    Field(max_length=MAX_STOPS, fail_fast=True),
    BeforeValidator(_listed),
]


class SamplingFields(Body):
    """The fields that all of OpenAI's generation APIs share, with vLLM's extra fields under vLLM's names."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), le=MAX_SEED)
    repetition_penalty: float | None = Field(default=None, ge=MIN_REPETITION_PENALTY, le=10)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: Annotated[dict[int, Annotated[float, Field(ge=-100, le=100)]], AtMost(MAX_BIASES)] | None = (
        None
    )
    stop: Stop | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] | None = None
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    # vLLM's names and sign: lower is served first. Few bands, so that aging raises each to the top in time.
    priority: int = Field(default=0, ge=PRIORITIES.start, le=PRIORITIES.stop - 1)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_SALT_CHARACTERS)
    timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)

    user: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    prompt_logprobs: Annotated[
        int | None, Refused("log-probabilities are of the answer; the prompt's are not computed")
    ] = None
    include_stop_str_in_output: Annotated[
        bool, Refused("a stop string is never part of the answer", neutral=(False,))
    ] = False
    skip_special_tokens: Annotated[bool, Refused("special tokens are no text", neutral=(True,))] = True
    spaces_between_special_tokens: Annotated[bool, Refused("special tokens are no text", neutral=(True,))] = (
        True
    )
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Texts | None = None
    guided_grammar: GrammarText | None = None

    @model_validator(mode="after")
    def _is_held_to_one_thing(self) -> SamplingFields:
        structure(self)
        return self

    @model_validator(mode="after")
    def _streams_what_has_options(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self


class ChatCompletionRequest(SamplingFields):
    """`POST /v1/chat/completions`."""

    messages: Listed[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Annotated[Choice | None, CHOICE] = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: JsonObject | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None

    store: Annotated[bool | None, Refused("nothing is stored", neutral=(False,))] = None
    modalities: Annotated[Listed[str] | None, Refused("answers are text", neutral=(["text"],))] = None
    include_reasoning: Annotated[
        bool, Refused("reasoning is always returned, in a field of its own", neutral=(True,))
    ] = True
    echo: Annotated[bool, Refused("the last message is not repeated", neutral=(False,))] = False
    add_special_tokens: Annotated[
        bool, Refused("the chat template writes the special tokens", neutral=(False,))
    ] = False
    chat_template: Annotated[Any, Refused("templates are programs; the model's own is used")] = None
    documents: Annotated[Any, Refused("documents belong in the messages")] = None

    metadata: Annotated[JsonObject | None, WithoutEffect(_BOOKKEEPING)] = None
    safety_identifier: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    service_tier: Annotated[Literal["auto", "default"] | None, WithoutEffect("there is one tier")] = None
    prompt_cache_key: Annotated[
        str | None, WithoutEffect("what prompts have in common is found without it")
    ] = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _no_override(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for name in value or {}:
            if name in _TEMPLATES_OWN or name.startswith("return_") or name.endswith(("_token", "_tokens")):
                raise ValueError(f"{name!r} is not for requests to set")
        return value

    def release(self) -> None:
        self.messages.clear()

    @model_validator(mode="after")
    def _consistent(self) -> ChatCompletionRequest:
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise ValueError("max_tokens and max_completion_tokens differ; give one")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise ValueError("continue_final_message needs add_generation_prompt: false")
            if self.messages[-1].role != "assistant" or self.messages[-1].tool_calls:
                raise ValueError("continue_final_message needs a last message that is the assistant's text")
        elif self.add_generation_prompt is False:
            raise ValueError("add_generation_prompt: false needs continue_final_message")
        return self
