"""openai-python's responses: each turn names the one before it, and the last server gets the items
themselves, with the identifiers that the first one gave them."""

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
    {"type": "function", "name": name, "parameters": schema, "strict": False}
    for name, schema in SCHEMAS.items()
]


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)


def ask(client: openai.OpenAI, items: list[Any], question: str, **stored: Any) -> tuple[str, str]:
    """Return the answer's text and identifier. `items` gets all that was said."""
    sent: list[Any] = [{"role": "user", "content": question}]
    while True:
        items += sent
        with client.responses.stream(
            model="tiny", input=sent if stored else items, tools=TOOLS, **stored
        ) as stream:
            response = stream.get_final_response()
        items += [item.model_dump(exclude_none=True) for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text, response.id
        sent = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": called(call.name, call.arguments),
            }
            for call in calls
        ]
        if stored:
            stored = {"previous_response_id": response.id}


((here_url, elsewhere_url, _),) = sessions()
here = client(here_url)
first = here.responses.create(model="tiny", input=PLAIN, tools=TOOLS)
answers, newest = [first.output_text], first.id
items: list[Any] = [{"role": "user", "content": PLAIN}, *(item.model_dump() for item in first.output)]
for question in (READ, EDIT):
    answer, newest = ask(here, items, question, previous_response_id=newest)
    answers.append(answer)
had = ""
with here.responses.stream(model="tiny", input=STORY, tools=TOOLS, previous_response_id=newest) as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            had += event.delta
        if ENOUGH in had:
            break
items += [{"role": "user", "content": STORY}, {"role": "assistant", "content": had}]
answers.append(ask(here, items, ON)[0])
answers.append(ask(client(elsewhere_url), items, ELSEWHERE)[0])
told(version=openai.__version__, answers=answers, had=had)
