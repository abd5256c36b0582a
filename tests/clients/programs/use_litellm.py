"""litellm, by OpenAI's and by Anthropic's protocol."""

from __future__ import annotations

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it requests its price list from GitHub first

import litellm
from exchange import ASK, HELLO, server_url, told

litellm.suppress_debug_info = True  # printed among our lines, for a model that is not in its list

TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
    },
}


def use(way: str, model: str, base: str) -> None:
    common = {"model": model, "api_base": base, "api_key": "unused", "max_tokens": 500}
    hello = [{"role": "user", "content": HELLO}]
    chat = litellm.completion(messages=hello, **common).choices[0].message.content
    stream = ""
    for chunk in litellm.completion(messages=hello, stream=True, **common):
        stream += chunk.choices[0].delta.content or ""
    messages = [{"role": "user", "content": ASK}]
    first = litellm.completion(messages=messages, tools=[TOOL], **common).choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    messages.append(first.message)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "12:00"})
    answer = litellm.completion(messages=messages, tools=[TOOL], **common).choices[0].message.content
    told(way, chat=chat, stream=stream, called=json.loads(call.function.arguments), answer=answer)


use("openai", "openai/tiny", server_url() + "/v1")
use("anthropic", "anthropic/tiny", server_url())
