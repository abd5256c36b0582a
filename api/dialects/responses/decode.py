"""Decode an OpenAI responses body into a `GenerationRequest`."""

from __future__ import annotations

from collections.abc import Sequence

from api.access.identity import ANYBODY, Caller
from api.dialects.openai.decode import common
from api.dialects.openai.structured import structure
from api.dialects.openai.thinking import reasoning_of
from api.dialects.openai.tools import chosen
from api.dialects.responses.conversation import with_instructions
from api.dialects.responses.schema import CreateResponse
from api.dialects.responses.store import new_id
from api.dialects.responses.tools import Offered
from api.dialects.spellings import THINKING_BUDGET, token_bound_of
from api.options.model_defaults import NEUTRAL, Defaults
from scheduler.request import ChatPrompt, GenerationRequest, Message


def generation_request(
    body: CreateResponse,
    messages: Sequence[Message],
    offered: Offered,
    defaults: Defaults = NEUTRAL,
    caller: Caller = ANYBODY,
    adapter: str = "",
) -> GenerationRequest:
    """Decode the body. `messages` are the whole conversation, `offered` its tools; `defaults` of the model's
    name apply to what the body omits."""
    tools = chosen(body.tool_choice, offered.tools, offered.chosen)
    return GenerationRequest(
        public_id=new_id(),
        prompt=ChatPrompt(
            messages=with_instructions(body.instructions, messages),
            tools=tools.tools,
            tool_choice=tools.mode,
            only_tool=tools.only,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            template_options=dict(body.chat_template_kwargs or {}),
            reasoning=defaults.reasoning_for(reasoning_of(body), body.chat_template_kwargs),
        ),
        max_tokens=token_bound_of(body),
        thinking_tokens=THINKING_BUDGET.value_of(body),
        structure=structure(body),
        top_logprobs=body.wanted_logprobs,
        **common(body, defaults, caller, adapter),
    )
