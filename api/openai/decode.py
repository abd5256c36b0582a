"""An OpenAI body to a `GenerationRequest`."""

from __future__ import annotations

import secrets
from typing import Any

from api.openai.schema import ChatCompletionRequest, ChatMessage
from scheduler.request import ChatPrompt, GenerationRequest, Message, Sampling

_UNSIGNED_64 = (1 << 64) - 1


def generation_request(body: ChatCompletionRequest) -> GenerationRequest:
    """Defaults are OpenAI's: temperature 1, nothing cut off, as many tokens as the context allows."""
    return GenerationRequest(
        public_id=f"chatcmpl-{secrets.token_hex(12)}",
        prompt=ChatPrompt(
            messages=tuple(_message(message) for message in body.messages),
            template_options=dict(body.chat_template_kwargs or {}),
        ),
        sampling=_sampling(body),
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=tuple(body.stop or ()),
        ignore_eos=body.ignore_eos,
        priority=body.priority,
        timeout_seconds=body.timeout,
        cache_salt=body.cache_salt or "",
    )


def _sampling(body: ChatCompletionRequest) -> Sampling:
    neutral = Sampling()
    # A request without a seed gets one: its tokens can then be computed again after an engine's death.
    seed = secrets.randbits(63) if body.seed is None else body.seed & _UNSIGNED_64
    return Sampling(
        temperature=_given(body.temperature, neutral.temperature),
        top_p=_given(body.top_p, neutral.top_p),
        top_k=max(0, body.top_k or 0),
        min_p=_given(body.min_p, neutral.min_p),
        seed=seed,
        repetition_penalty=_given(body.repetition_penalty, neutral.repetition_penalty),
        presence_penalty=_given(body.presence_penalty, neutral.presence_penalty),
        frequency_penalty=_given(body.frequency_penalty, neutral.frequency_penalty),
        logit_bias=tuple(sorted((body.logit_bias or {}).items())),
    )


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def _message(message: ChatMessage) -> Message:
    """As templates take it: absent fields absent, text parts joined, `developer` named `system`."""
    rendered: dict[str, Any] = message.model_dump(exclude_none=True)
    if isinstance(message.content, list):
        rendered["content"] = "".join(part.text for part in message.content)
    # Templates write `message.content`; a tool call without words has none.
    rendered.setdefault("content", "")
    if message.role == "developer":
        rendered["role"] = "system"
    return rendered
