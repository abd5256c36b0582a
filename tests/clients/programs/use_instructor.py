"""instructor: an object out of an answer, by the way that asks the model in words."""

from __future__ import annotations

import instructor
import openai
from exchange import ASK, server_url
from pydantic import BaseModel


class Time(BaseModel):
    zone: str
    hour: int


client = instructor.from_openai(
    openai.OpenAI(base_url=server_url() + "/v1", api_key="unused"), mode=instructor.Mode.MD_JSON
)
asked = {"model": "tiny", "response_model": Time, "messages": [{"role": "user", "content": ASK}]}
print(client.chat.completions.create(**asked).model_dump_json())
*_, last = client.chat.completions.create_partial(**asked)
print(last.model_dump_json())
