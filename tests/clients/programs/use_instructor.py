"""instructor: an object from an answer, by a required tool call (its default), by a schema that constrains
the answer, and by a prompt in words."""

from __future__ import annotations

import instructor
import openai
from exchange import ASK, object_told, server_url
from pydantic import BaseModel


class Time(BaseModel):
    zone: str
    hour: int


openai_client = openai.OpenAI(base_url=server_url() + "/v1", api_key="unused")
clients = {
    "default": instructor.from_openai(openai_client),
    "schema": instructor.from_openai(openai_client, mode=instructor.Mode.JSON_SCHEMA),
    "words": instructor.from_openai(openai_client, mode=instructor.Mode.MD_JSON),
}
asked = {"model": "tiny", "response_model": Time, "messages": [{"role": "user", "content": ASK}]}
for way, client in clients.items():
    object_told(way, client.chat.completions.create(**asked).model_dump())
    *_, last = client.chat.completions.create_partial(**asked)
    object_told(f"{way}, streamed", last.model_dump())
