"""Decode an OpenAI completions body into one `GenerationRequest` for each of its prompts."""

from __future__ import annotations

import secrets

from api.dialects.completions.schema import CompletionRequest, PromptItem
from api.dialects.openai.decode import sampling
from api.dialects.openai.structured import structure
from api.options.model_defaults import NEUTRAL, Defaults
from scheduler.request import GenerationRequest, TextPrompt, TokenPrompt


def generation_requests(
    body: CompletionRequest, tenant: str = "", defaults: Defaults = NEUTRAL
) -> list[GenerationRequest]:
    public_id = f"cmpl-{secrets.token_hex(12)}"
    chosen = sampling(body, defaults)
    return [
        GenerationRequest(
            public_id=public_id,
            prompt=_prompt(prompt),
            sampling=chosen,
            max_tokens=body.max_tokens,
            stop=tuple(body.stop or ()),
            stop_token_ids=tuple(body.stop_token_ids or ()),
            includes_stop=body.include_stop_str_in_output,
            ignore_eos=body.ignore_eos,
            structure=structure(body),
            choices=body.n or 1,
            top_logprobs=body.logprobs,
            prompt_logprobs=body.wanted_prompt_logprobs,
            min_tokens=body.min_tokens,
            thinking_tokens=body.thinking_token_budget,
            priority=body.priority,
            timeout_seconds=body.timeout,
            cache_salt=body.cache_salt or "",
            tenant=tenant,
        )
        for prompt in body.prompt
    ]


def _prompt(prompt: PromptItem) -> TextPrompt | TokenPrompt:
    return TextPrompt(prompt) if isinstance(prompt, str) else TokenPrompt(tuple(prompt))
