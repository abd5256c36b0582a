"""A model that knows a little: what it knows is right through every API, what a grammar holds it to is whole
and short, and agents' loops end. Random weights hide white space without end, stop marks in a text and
prompts that a model cannot read."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from tokenizers import Tokenizer

from api.smollm2.model import NAME as SERVED_NAME
from tests.end_to_end.serving import Served
from tests.real_model.tasks import CAPITALS, QUESTIONS, Form, form, is_right

pytestmark = pytest.mark.timeout(1800)  # Two busy cores give this model a few tokens a second.
AT_ONCE = 16
TIMES = 3
"""How much longer than the shortest valid text an answer may be, in tokens."""
ANSWER_TOKENS = 48
NOTHING: Any = {"type": "object", "properties": {}, "additionalProperties": False}
KNOWN = "France"
"""The model knows this land's capital."""


def post(served: Served, path: str, **body: Any) -> Any:
    status, said = served.post(path, timeout_seconds=600, **body)
    assert status == 200, said
    return said


def by_chat(served: Served, question: str) -> str:
    asked = {"messages": [{"role": "user", "content": question}], "max_tokens": ANSWER_TOKENS}
    said = post(served, "/v1/chat/completions", temperature=0, **asked)["choices"][0]["message"]["content"]
    return str(said)


def by_completion(served: Served, question: str) -> str:
    """The prompt as the chat template writes it."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = (("system", system), ("user", question))
    prompt = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    asked = {"prompt": f"{prompt}<|im_start|>assistant\n", "max_tokens": ANSWER_TOKENS, "temperature": 0}
    return str(post(served, "/v1/completions", **asked)["choices"][0]["text"])


def by_response(served: Served, question: str) -> str:
    said = post(served, "/v1/responses", input=question, max_output_tokens=ANSWER_TOKENS, temperature=0)
    return "".join(part["text"] for item in said["output"] for part in item["content"])


def by_message(served: Served, question: str) -> str:
    asked = {"messages": [{"role": "user", "content": question}], "max_tokens": ANSWER_TOKENS}
    return "".join(part["text"] for part in post(served, "/v1/messages", temperature=0, **asked)["content"])


APIS: tuple[Callable[[Served, str], str], ...] = (by_chat, by_completion, by_response, by_message)


def test_where_no_model_is_named_the_printed_command_prints_an_answer(served: Served) -> None:
    """README's quick start; with temperature 0 for this test."""
    (line,) = [line for line in served.lines if line.startswith("try ")]
    command = line.removeprefix("try").strip().replace('"max_tokens":', '"temperature":0,"max_tokens":')
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300, check=True)
    assert CAPITALS["France"] in done.stdout
    assert served.get("/v1/models")[1]["data"][0]["id"] == SERVED_NAME
    assert any(line.startswith("model      smollm2, 98 MB of weights") for line in served.lines)


def all_of(ask: Callable[[Any], Any], asked: Sequence[Any]) -> list[Any]:
    """Ask them at once, as far as AT_ONCE."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(ask, asked))


def test_it_knows_capitals_through_every_api(served: Served) -> None:
    """One text for one question, ended by the model itself: no mark of a turn stands in it."""
    question = f"What is the capital of {KNOWN}?"
    (text,) = set(all_of(lambda api: api(served, question), APIS))
    assert "<|" not in text
    assert is_right(text, QUESTIONS[question]), text


@pytest.fixture(scope="module")
def tokens_of(folder: Path) -> Callable[[str], int]:
    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text).ids)


def chat(served: Served, question: str, **fields: Any) -> tuple[Any, int]:
    """Return the greedy answer's choice, and its tokens."""
    asked = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 400}
    said = post(served, "/v1/chat/completions", **asked, **fields)
    return said["choices"][0], said["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    "numbers", [pytest.param([2], id="one"), pytest.param(range(200), id="many", marks=pytest.mark.long)]
)
def test_answers_held_to_a_schema_are_whole_and_short(
    served: Served, tokens_of: Callable[[str], int], numbers: Sequence[int]
) -> None:
    def ask(one: Form) -> tuple[Any, int]:
        held = {"name": "thing", "strict": True, "schema": one.schema}
        return chat(served, one.question, response_format={"type": "json_schema", "json_schema": held})

    forms = [form(number) for number in numbers]
    for one, (choice, tokens) in zip(forms, all_of(ask, forms), strict=True):
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), one.schema)
        assert tokens <= TIMES * (tokens_of(one.shortest) + 1), choice


@pytest.mark.parametrize(
    "numbers", [pytest.param([1], id="one"), pytest.param(range(200), id="many", marks=pytest.mark.long)]
)
def test_calls_held_to_a_schema_are_whole_and_short(
    served: Served, tokens_of: Callable[[str], int], numbers: Sequence[int]
) -> None:
    """It must call one of two tools, or the one that is named: one call, and no second one because the model
    writes a newline after the first."""

    def ask(number: int) -> tuple[Any, int]:
        one = form(number)
        save = {"name": "save_thing", "description": "Saves a thing", "parameters": one.schema}
        other = {"name": "delete_all", "description": "Deletes all things", "parameters": NOTHING}
        tools = [{"type": "function", "function": {**tool, "strict": True}} for tool in (save, other)]
        named = {"type": "function", "function": {"name": "save_thing"}}
        choice = named if number % 4 > 1 else "required"
        return chat(served, f"{one.question} Save it.", tools=tools[: 1 + number % 2], tool_choice=choice)

    for number, (choice, tokens) in zip(numbers, all_of(ask, numbers), strict=True):
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        one = form(number)
        if call["function"]["name"] == "save_thing":
            jsonschema.validate(json.loads(call["function"]["arguments"]), one.schema)
        written = f'<tool_call>\n{{"name": "save_thing", "arguments": {one.shortest}}}\n</tool_call>'
        assert tokens <= TIMES * (tokens_of(written) + 1), choice


CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
LOOP = (
    ("What is the weather in Paris?", "Paris: 21 degrees, sunny"),
    ("And what is the weather in Rome?", "Rome: 25 degrees, rain"),
    ("And what is the weather in Oslo?", "Oslo: 9 degrees, snow"),
)


@pytest.mark.parametrize("turns", [2, pytest.param(3, marks=pytest.mark.long)])
def test_openais_client_ends_a_loop_of_turns(served: Served, turns: int) -> None:
    """Question, call, result, answer, again and again in one conversation."""
    function = {"name": "get_weather", "description": "The weather in a city", "parameters": CITY}
    tool: Any = {"type": "function", "function": {**function, "strict": True}}
    messages: list[Any] = []
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:

        def said(choice: Any) -> Any:
            asked: Any = {"model": SERVED_NAME, "tools": [tool], "temperature": 0, "max_tokens": 96}
            answer = client.chat.completions.create(messages=messages, tool_choice=choice, **asked).choices[0]
            messages.append(answer.message)
            return answer

        for question, result in LOOP[:turns]:
            messages.append({"role": "user", "content": question})
            called = said("required")
            assert called.finish_reason == "tool_calls"
            (call,) = called.message.tool_calls
            assert json.loads(call.function.arguments)["city"] in result
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            told = said("none")
            assert told.finish_reason == "stop"
            assert _number(result) in told.message.content, told


def _number(result: str) -> str:
    found = re.search(r"\d+", result)
    assert found is not None
    return found[0]
