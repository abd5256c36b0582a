"""Decode an OpenAI responses body into a `GenerationRequest`.

A file of its own because every dialect's folder has the same four.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from api.openai.decode import reasoning
from api.openai.structured import flat_structure
from api.openai.tools import neutral_choice
from api.responses.conversation import with_instructions
from api.responses.schema import CreateResponse
from scheduler.request import ChatPrompt, GenerationRequest, Message, Sampling


def generation_request(
    body: CreateResponse, messages: Sequence[Message], tenant: str = ""
) -> GenerationRequest:
    """Decode the body with OpenAI's defaults. `messages` is the whole conversation."""
    neutral = Sampling()
    choice, only_tool = neutral_choice(body.tool_choice)
    return GenerationRequest(
        public_id=f"resp_{secrets.token_hex(24)}",
        prompt=ChatPrompt(
            messages=with_instructions(body.instructions, messages),
            tools=tuple(body.offered),
            tool_choice=choice,
            only_tool=None if only_tool is None else body.chosen(only_tool),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=reasoning(None if body.reasoning is None else body.reasoning.effort),
        ),
        sampling=Sampling(
            temperature=neutral.temperature if body.temperature is None else body.temperature,
            top_p=neutral.top_p if body.top_p is None else body.top_p,
            seed=secrets.randbits(63),
        ),
        max_tokens=body.max_output_tokens,
        structure=flat_structure(None if body.text is None else body.text.format),
        top_logprobs=body.wanted_logprobs,
        tenant=tenant,
    )
