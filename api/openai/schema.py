"""The accepted bodies of the OpenAI API. Unsupported fields are refused by name; a field whose neutral value
has no effect is accepted with that value only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, ValidationInfo, field_validator, model_validator

from api.fields import AtMost, JsonObject, Listed, Partly, Refused, WithoutEffect, unsupported
from api.identity import MAX_TIMEOUT_SECONDS
from api.openai.messages import Body, ChatMessage
from api.openai.structured import (
    GrammarText,
    ResponseFormat,
    SchemaOrText,
    StructuredOutputs,
    Texts,
    WhiteSpacePattern,
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
MAX_THINKING_TOKENS = 2**31 - 1

_BOOKKEEPING = "the provider's own bookkeeping"
_RETENTION = "prefixes stay as long as there is room"
_WHOLE_CONTEXT = "the penalty counts the whole prompt and answer"
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
    include_usage: StrictBool = False
    include_obfuscation: Annotated[StrictBool, Refused("nothing is padded", neutral=(False,))] = False
    # vLLM's: with `include_usage`, the usage so far on every chunk.
    continuous_usage_stats: StrictBool = False


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]],
    Field(max_length=MAX_STOPS, fail_fast=True),
    BeforeValidator(_listed),
]


class DecodingFields(Body):
    """How tokens are chosen and where they end, the same in all of OpenAI's ways of asking: OpenAI's fields,
    and vLLM's extra ones by vLLM's names."""

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
    include_stop_str_in_output: StrictBool = False
    ignore_eos: StrictBool = False
    min_tokens: int = Field(default=0, ge=0)
    # vLLM's name and values: -1 is no budget.
    thinking_token_budget: int | None = Field(default=None, ge=-1, le=MAX_THINKING_TOKENS)
    # vLLM's names and sign: lower is served first. Few bands, so that aging brings each to the top in time.
    priority: int = Field(default=0, ge=PRIORITIES.start, le=PRIORITIES.stop - 1)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_SALT_CHARACTERS)
    timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)

    skip_special_tokens: Annotated[StrictBool, Refused("special tokens are no text", neutral=(True,))] = True
    spaces_between_special_tokens: Annotated[
        StrictBool, Refused("special tokens are no text", neutral=(True,))
    ] = True
    return_token_ids: Annotated[StrictBool | None, Refused("answers are text", neutral=(False,))] = None
    return_tokens_as_token_ids: Annotated[
        StrictBool | None, Refused("tokens are reported as text and as bytes", neutral=(False,))
    ] = None
    use_beam_search: Annotated[StrictBool | None, Refused("there is no beam search", neutral=(False,))] = None
    length_penalty: Annotated[float | None, Refused("there is no beam search", neutral=(1, 1.0))] = None
    bad_words: Annotated[Listed[str] | None, Refused("logit_bias keeps tokens out", neutral=([],))] = None
    allowed_token_ids: Annotated[Listed[int] | None, Refused("a grammar says what may come")] = None
    truncate_prompt_tokens: Annotated[int | None, Refused("what is too long is refused, not cut")] = None
    logits_processors: Annotated[Any, Refused("they are programs")] = None
    # mlx_lm.server's.
    repetition_context_size: Annotated[
        int | None, Partly(f"refused with a repetition_penalty: {_WHOLE_CONTEXT}")
    ] = Field(default=None, ge=0)
    xtc_probability: Annotated[float | None, Refused("there is no such cut-off", neutral=(0, 0.0))] = None
    adapters: Annotated[str | None, Refused("there is one model")] = None
    # SGLang's.
    regex: Annotated[str | None, Refused("it is called guided_regex here")] = None
    ebnf: Annotated[str | None, Refused("it is called guided_grammar here, and is Lark's or llama.cpp's")] = (
        None
    )

    @field_validator("repetition_context_size")
    @classmethod
    def _of_no_penalty(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("repetition_penalty") not in (None, 1.0):
            raise unsupported(_WHOLE_CONTEXT)
        return value


class SamplingFields(DecodingFields):
    """What chat completions and completions have in common."""

    model: str | None = None
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)

    user: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    prompt_logprobs: Annotated[int | None, Partly("not with stream")] = Field(
        default=None, ge=0, le=MAX_TOP_LOGPROBS
    )
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Texts | None = None
    guided_grammar: GrammarText | None = None
    guided_whitespace_pattern: WhiteSpacePattern | None = None

    @model_validator(mode="after")
    def _is_held_to_one_thing(self) -> SamplingFields:
        structure(self)
        return self

    @field_validator("prompt_logprobs")
    @classmethod
    def _beside_whole_answers(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("stream"):
            raise unsupported("with stream, log-probabilities of prompts have no place")
        return value

    @model_validator(mode="after")
    def _streams_what_has_options(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self


class ChatCompletionRequest(SamplingFields):
    """`POST /v1/chat/completions`."""

    messages: Listed[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: StrictBool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Annotated[Choice | None, CHOICE] = None
    parallel_tool_calls: StrictBool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: JsonObject | None = None
    continue_final_message: StrictBool = False
    add_generation_prompt: StrictBool | None = None

    store: Annotated[StrictBool | None, Refused("nothing is stored", neutral=(False,))] = None
    modalities: Annotated[Listed[str] | None, Refused("answers are text", neutral=(["text"],))] = None
    include_reasoning: Annotated[
        StrictBool, Refused("reasoning is always returned, in a field of its own", neutral=(True,))
    ] = True
    echo: Annotated[StrictBool, Refused("the last message is not repeated", neutral=(False,))] = False
    add_special_tokens: Annotated[
        StrictBool, Refused("the chat template writes the special tokens", neutral=(False,))
    ] = False
    chat_template: Annotated[Any, Refused("templates are programs; the model's own is used")] = None
    documents: Annotated[Any, Refused("documents belong in the messages")] = None

    metadata: Annotated[JsonObject | None, WithoutEffect(_BOOKKEEPING)] = None
    safety_identifier: Annotated[str | None, WithoutEffect(_BOOKKEEPING)] = None
    service_tier: Annotated[Literal["auto", "default"] | None, WithoutEffect("there is one tier")] = None
    prompt_cache_key: Annotated[
        str | None, WithoutEffect("what prompts have in common is found without it")
    ] = None
    prompt_cache_retention: Annotated[Any, WithoutEffect(_RETENTION)] = None
    prompt_cache_options: Annotated[Any, WithoutEffect(_RETENTION)] = None
    prediction: Annotated[Any, WithoutEffect("the answer is the same with a guess at it")] = None
    moderation: Annotated[Any, Refused("nothing is moderated")] = None
    verbosity: Annotated[str | None, Refused("models have no such setting", neutral=("medium",))] = None
    web_search_options: Annotated[Any, Refused("nothing is searched here")] = None
    audio: Annotated[Any, Refused("answers are text")] = None
    functions: Annotated[Any, Refused("long replaced by tools")] = None
    function_call: Annotated[Any, Refused("long replaced by tool_choice")] = None

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
