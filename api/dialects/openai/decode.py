"""Decode an OpenAI body into a `GenerationRequest`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from api.access.identity import ANYBODY, Caller
from api.bodies.sampling_values import MAX_SEED
from api.dialects.openai.messages import ChatMessage
from api.dialects.openai.schema import ChatCompletionRequest, ChatFields, DecodingFields, RepetitionDetection
from api.dialects.openai.structured import structure
from api.dialects.openai.thinking import reasoning_of
from api.dialects.openai.tools import chosen, offered
from api.dialects.spellings import THINKING_BUDGET, token_bound_of
from api.dialects.volatile_headers import stable
from api.options.model_defaults import NEUTRAL, Defaults
from scheduler.repetition import NEVER, Repetition
from scheduler.request import (
    ChatPrompt,
    GenerationRequest,
    Message,
    Sampling,
    Tool,
)


def generation_request(
    body: ChatCompletionRequest, defaults: Defaults = NEUTRAL, caller: Caller = ANYBODY, adapter: str = ""
) -> GenerationRequest:
    """Decode the body. `defaults` of the model's name apply to what it omits. If it has no bound on tokens,
    the context is the bound."""
    prompt = chat_prompt(body, _messages(body.messages), offered(body.tools), defaults)
    return GenerationRequest(
        public_id=f"chatcmpl-{secrets.token_hex(12)}",
        prompt=replace(prompt, continue_final=body.continues),
        choices=body.n or 1,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **common(body, defaults, caller, adapter),
    )


def chat_prompt(
    body: ChatFields,
    messages: Iterable[Message],
    offers: Sequence[Tool],
    defaults: Defaults,
    offered_name: Callable[[str], str] = str,
) -> ChatPrompt:
    """`offers`: the prompt's tools; `offered_name`: the name there of one that the client names."""
    tools = chosen(body.tool_choice, offers, offered_name)
    return ChatPrompt(
        messages=tuple(messages),
        template_options=dict(body.chat_template_kwargs or {}),
        tools=tools.tools,
        tool_choice=tools.mode,
        only_tool=tools.only,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        reasoning=defaults.reasoning_for(reasoning_of(body), body.chat_template_kwargs),
    )


def common(body: DecodingFields, defaults: Defaults, caller: Caller, adapter: str) -> dict[str, Any]:
    """Return the fields of a request that are read alike in all of OpenAI's APIs."""
    return {
        "sampling": _sampling(body, defaults),
        "max_tokens": token_bound_of(body),
        "thinking_tokens": THINKING_BUDGET.value_of(body),
        "structure": structure(body),
        "stop": tuple(body.stop or ()),
        "stop_token_ids": tuple(body.stop_token_ids or ()),
        "includes_stop": body.include_stop_str_in_output,
        "ignore_eos": body.ignore_eos,
        "min_tokens": body.min_tokens,
        "repetition": _repetition(body.repetition_detection),
        "cache_salt": body.cache_salt or "",
        **caller.fields(adapter, body.timeout, body.priority),
    }


def _repetition(asked: RepetitionDetection | None) -> Repetition | None:
    if asked is None:
        return None
    if not asked.max_pattern_size:
        return NEVER
    least = max(1, asked.min_pattern_size)
    return Repetition(least * asked.min_count, least, asked.max_pattern_size, asked.min_count)


def _sampling(body: DecodingFields, defaults: Defaults) -> Sampling:
    return defaults.sampling_for(
        body,
        # A request without a seed gets one: its tokens can then be computed again after an engine's death.
        seed=secrets.randbits(63) if body.seed is None else body.seed & MAX_SEED,
        logit_bias=tuple(sorted((body.logit_bias or {}).items())),
    )


def _messages(messages: Sequence[ChatMessage]) -> Iterator[Message]:
    """Return messages as chat templates take them: absent fields absent, text parts joined, `developer` named
    `system`."""
    for message in messages:
        is_system = message.role in ("system", "developer")
        blocks = stable(message.blocks) if is_system else message.blocks
        if is_system and not blocks and message.blocks:
            continue
        yield _message("system" if is_system else message.role, "".join(blocks), message)


def _message(role: str, content: str, message: ChatMessage) -> Message:
    # Templates write `message.content`; a message with only tool calls has none.
    rendered: dict[str, Any] = {"role": role, "content": content}
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    if message.thoughts:
        rendered["reasoning_content"] = message.thoughts
    if calls := message.calls:
        rendered["tool_calls"] = [call.neutral for call in calls]
    return rendered
