"""Decode an OpenAI completions body into one `GenerationRequest` for each of its prompts."""

from __future__ import annotations

import secrets
from dataclasses import replace

from api.dialects.completions.schema import CompletionRequest, PromptItem
from api.dialects.openai.decode import decoding
from api.dialects.openai.structured import structure
from api.options.model_defaults import NEUTRAL, Defaults
from scheduler.request import GenerationRequest, TextPrompt, TokenPrompt


def generation_requests(
    body: CompletionRequest, tenant: str = "", defaults: Defaults = NEUTRAL
) -> list[GenerationRequest]:
    public_id = f"cmpl-{secrets.token_hex(12)}"
    decoded = decoding(body, defaults)
    return [
        replace(
            decoded,
            public_id=public_id,
            prompt=_prompt(prompt, body.add_special_tokens),
            max_tokens=body.token_bound,
            thinking_tokens=body.thinking_token_budget,
            structure=structure(body),
            choices=body.n or 1,
            top_logprobs=body.logprobs,
            prompt_logprobs=body.wanted_prompt_logprobs,
            tenant=tenant,
        )
        for prompt in body.prompt
    ]


def _prompt(prompt: PromptItem, add_special_tokens: bool) -> TextPrompt | TokenPrompt:
    return TextPrompt(prompt, add_special_tokens) if isinstance(prompt, str) else TokenPrompt(tuple(prompt))
