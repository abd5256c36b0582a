"""litellm, by OpenAI's and by Anthropic's protocol; typed questions, by it and by LangChain."""

from __future__ import annotations

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it requests its price list from GitHub first

import litellm
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score

litellm.suppress_debug_info = True  # printed among our lines, for a model that is not in its list

TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
    },
}

STATE = "Charged twice."
LISTED = [
    {"type": "predicate", "instructions": "The customer is angry."},
    {"type": "choice", "instructions": "Which team?", "choices": [{"value": "billing"}, {"value": "sales"}]},
    {"type": "score", "instructions": "How urgent?", "levels": [{"label": "low"}, {"label": "high"}]},
]
NAMED = {
    "angry": Predicate(instructions="The customer is angry."),
    "team": Choice(instructions="Which team?", choices={"billing": "payments", "sales": "new ones"}),
    "urgent": Score(instructions="How urgent?", levels=["low", "high"]),
}


def use(way: str, model: str, base: str) -> None:
    common = {"model": model, "api_base": base, "api_key": "unused", "max_tokens": 500}
    hello = [{"role": "user", "content": "Hello"}]
    chat = litellm.completion(messages=hello, **common).choices[0].message.content
    stream = ""
    for chunk in litellm.completion(messages=hello, stream=True, **common):
        stream += chunk.choices[0].delta.content or ""
    messages = [{"role": "user", "content": "What time is it?"}]
    first = litellm.completion(messages=messages, tools=[TOOL], **common).choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    messages.append(first.message)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "12:00"})
    answer = litellm.completion(messages=messages, tools=[TOOL], **common).choices[0].message.content
    called = json.loads(call.function.arguments)
    print(json.dumps({"way": way, "chat": chat, "stream": stream, "called": called, "answer": answer}))


url = sys.argv[1] + "/v1"
use("openai", "openai/tiny", url)
use("anthropic", "anthropic/tiny", sys.argv[1])
said = litellm.decisions("openai/tiny", input=STATE, questions=LISTED, api_base=url, api_key="unused")
print(json.dumps([answer.type for answer in said.answers]))
said = OpenAIDecisions(model="tiny", base_url=url, api_key="unused").invoke(
    {"input": STATE, "questions": NAMED}
)
print(json.dumps([*said.predicates, *said.choices, *said.scores]))
