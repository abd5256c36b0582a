"""Decode an OpenAI completions body into one `GenerationRequest` for each of its prompts."""

from __future__ import annotations

import secrets

from api.access.identity import ANYBODY, Caller
from api.dialects.completions.schema import CompletionRequest, PromptItem
from api.dialects.openai.decode import common
from api.options.model_defaults import NEUTRAL, Defaults
from scheduler.request import GenerationRequest, TextPrompt, TokenPrompt


def generation_requests(
    body: CompletionRequest, defaults: Defaults = NEUTRAL, caller: Caller = ANYBODY, adapter: str = ""
) -> list[GenerationRequest]:
    public_id = f"cmpl-{secrets.token_hex(12)}"
    rest = {**common(body, defaults, caller, adapter), "max_tokens": body.token_bound}
    return [
        GenerationRequest(
            public_id=public_id,
            prompt=_prompt(prompt, body.add_special_tokens),
            choices=body.n or 1,
            top_logprobs=body.logprobs,
            prompt_logprobs=body.logprobs if body.echo else None,
            **rest,
        )
        for prompt in body.prompt
    ]


def _prompt(prompt: PromptItem, add_special_tokens: bool) -> TextPrompt | TokenPrompt:
    return TextPrompt(prompt, add_special_tokens) if isinstance(prompt, str) else TokenPrompt(tuple(prompt))
