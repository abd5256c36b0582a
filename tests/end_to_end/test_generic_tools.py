"""The embedded model's weights under a template without tools: the official client completes a tool loop."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from tests.end_to_end.serving import Served, serving
from tests.end_to_end.test_tool_loops import MODEL, RESULT, SCHEMA
from tests.scheduler.prompt.test_generic_tools import CHATML

FUNCTION: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather in a city", "parameters": SCHEMA},
}


@pytest.fixture(scope="module")
def without_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models") / "model"
    shutil.copytree(EMBEDDED_FOLDER, folder, symlinks=True)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": None}))
    (folder / "chat_template.jinja").write_text(CHATML)
    with serving("--model", str(folder), "--served-model-name", MODEL, trained=True) as served:
        yield served


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_openais_client_completes_a_loop(without_tools: Served, choice: Any) -> None:
    """The second turn finds all of the first in the prefix cache."""
    with openai.OpenAI(base_url=without_tools.url + "/v1", api_key="unused", max_retries=0) as client:
        messages: list[Any] = [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the weather in Paris?"},
        ]
        asked: dict[str, Any] = {"model": MODEL, "tools": [FUNCTION], "temperature": 0, "max_tokens": 200}
        first = client.chat.completions.create(messages=messages, tool_choice=choice, **asked)
        answer = first.choices[0]
        assert answer.finish_reason == "tool_calls"
        assert answer.message.tool_calls is not None
        call = answer.message.tool_calls[0]
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
        messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        second = client.chat.completions.create(messages=messages, **asked)
    assert second.choices[0].finish_reason in ("stop", "tool_calls")
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 1
