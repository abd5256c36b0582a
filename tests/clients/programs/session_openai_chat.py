"""openai-python's chat completions. It has no history of its own: the program keeps the messages."""

from __future__ import annotations

from typing import Any

import openai
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

TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()
]


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, messages: list[Any], question: str) -> str:
    messages.append({"role": "user", "content": question})
    while True:
        with client.chat.completions.stream(model="tiny", messages=messages, tools=TOOLS) as stream:
            message = stream.get_final_completion().choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            result = called(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


((here_url, elsewhere_url, _),) = sessions()
here, messages = client(here_url), list[Any]()
plain = here.chat.completions.create(model="tiny", messages=[{"role": "user", "content": PLAIN}], tools=TOOLS)
messages += [{"role": "user", "content": PLAIN}, plain.choices[0].message]
answers = [plain.choices[0].message.content, *(ask(here, messages, question) for question in (READ, EDIT))]
messages.append({"role": "user", "content": STORY})
had = ""
stream = here.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, stream=True)
for chunk in stream:
    had += chunk.choices[0].delta.content or ""
    if ENOUGH in had:
        stream.close()
        break
messages.append({"role": "assistant", "content": had})
answers.append(ask(here, messages, ON))
answers.append(ask(client(elsewhere_url), messages, ELSEWHERE))
told(version=openai.__version__, answers=answers, had=had)
