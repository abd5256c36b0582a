"""instructor: an object from an answer, by a required tool call (its default), by a schema that constrains
the answer, and by a prompt in words."""

from __future__ import annotations

import json
import sys

import instructor
import openai
from pydantic import BaseModel


class Time(BaseModel):
    zone: str
    hour: int


openai_client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="unused")
clients = {
    "default": instructor.from_openai(openai_client),
    "schema": instructor.from_openai(openai_client, mode=instructor.Mode.JSON_SCHEMA),
    "words": instructor.from_openai(openai_client, mode=instructor.Mode.MD_JSON),
}
asked = {
    "model": "tiny",
    "response_model": Time,
    "messages": [{"role": "user", "content": "What time is it?"}],
}
for way, client in clients.items():
    *_, streamed = client.chat.completions.create_partial(**asked)
    for name, value in ((way, client.chat.completions.create(**asked)), (f"{way}, streamed", streamed)):
        print(json.dumps({"way": name, "object": value.model_dump()}))
