"""anthropic-python's messages. It has no history of its own: the program keeps the messages."""

from __future__ import annotations

from typing import Any

import anthropic
from session import (
    EDIT,
    ELSEWHERE,
    ENOUGH,
    ON,
    PLAIN,
    READ,
    SCHEMAS,
    STORY,
    called,
    sessions,
    told,
)

TOOLS: Any = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
ASKED: Any = {"model": "tiny", "max_tokens": 100_000, "tools": TOOLS}


def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)


def ask(client: anthropic.Anthropic, messages: list[Any], question: str) -> str:
    messages.append({"role": "user", "content": question})
    while True:
        with client.messages.stream(messages=messages, **ASKED) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in message.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": called(call.name, call.input)}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})


((here_url, elsewhere_url, _),) = sessions()
here, messages = client(here_url), list[Any]()
whole = here.messages.create(
    model="tiny", max_tokens=1000, tools=TOOLS, messages=[{"role": "user", "content": PLAIN}]
)
messages += [{"role": "user", "content": PLAIN}, {"role": "assistant", "content": whole.content}]
answers = ["".join(block.text for block in whole.content if block.type == "text")]
answers += [ask(here, messages, question) for question in (READ, EDIT)]
messages.append({"role": "user", "content": STORY})
had = ""
with here.messages.stream(messages=messages, **ASKED) as stream:
    for text in stream.text_stream:
        had += text
        if ENOUGH in had:
            break
messages.append({"role": "assistant", "content": had})
answers.append(ask(here, messages, ON))
answers.append(ask(client(elsewhere_url), messages, ELSEWHERE))
told(version=anthropic.__version__, answers=answers, had=had)
