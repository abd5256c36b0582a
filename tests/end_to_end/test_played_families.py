"""An agent's loop of ten answers with a model of each family: what it writes in its own notation reaches an
official client whole, and stands in the next prompt as it was written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from scheduler.answer.answer_format import PLAIN
from scheduler.prompt.tokenizer import HubTokenizer
from tests.examples import sampled
from tests.fakes.notation_tokenizer import NotationTokenizer
from tests.fakes.played_server import playing
from tests.scheduler.answer.templates import FAMILIES, Template

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
SCHEMAS: dict[str, Any] = {
    "fs.read_file": {"path": _TEXT},
    "fs.write-file": {"path": _TEXT, "content": _TEXT},
    "get_weather": {
        "city": _TEXT,
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "units": {"type": "array", "items": _TEXT},
        "at": {"type": "object", "properties": {"lat": _NUMBER, "name": _TEXT}},
    },
    "now": {},
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model means, and what the client must get."""

    thoughts: str = ""
    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


def read(path: str) -> tuple[str, dict[str, Any]]:
    return "fs.read_file", {"path": path}


def written(content: str, path: str = "a b.md") -> tuple[str, dict[str, Any]]:
    return "fs.write-file", {"path": path, "content": content}


def answers(family: Template) -> Iterator[Answer]:
    """Ten of them, as the family can write them."""
    example = family.written(_message(Answer("", "", (("now", {}), read("x.md"))), "", family))
    weather = {
        "city": "Ås",
        "days": 3,
        "exact": True,
        "units": ["°C", "F"],
        "at": {"lat": 59.9, "name": "a, b"},
    }
    for answer in (
        Answer("I read it first.", "One moment.", (read("a.md"),)),
        Answer("It is short.", "", (written(f"Marks are {family.marks} here.\n"),)),
        Answer("Two at once.", "", (read("b.md"), ("get_weather", weather))),
        Answer("", "And the time?", (("now", {}),)),
        Answer("It is late.", "So far it is done."),
        Answer("Code with quotes.", "", (written("def f(x):\n\treturn \"a\\n\" + 'b'  # {1: [2]}\n\n"),)),
        Answer("An example.", "I write one.", (written(f"So:\n{example}\nThat is it."),)),
        Answer("Both.", "Both files.", (read("c.md"), read("d.md"))),
        Answer("", "", (written("", "<empty> & so"), ("now", {}))),
        Answer("All is done.", "Done: a.md, b.md."),
    ):
        calls = answer.calls if family.parallel else answer.calls[:1]
        yield replace(answer, calls=calls, thoughts=answer.thoughts if family.thoughts else "")


def _message(answer: Answer, number: str, family: Template) -> dict[str, Any]:
    calls = [
        {"id": family.ids.format(name, f"{number}{at}"), "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(answer.calls)
    ]
    return {
        "role": "assistant", "content": answer.text, "reasoning_content": answer.thoughts, "tool_calls": calls
    }  # fmt: skip


@dataclass(slots=True)
class Model:
    """Writes the answers in turn, and keeps each prompt."""

    texts: tuple[str, ...]
    prompts: list[str] = field(default_factory=list)

    def next_text(self, number: int, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.texts[(len(self.prompts) - 1) % len(self.texts)]


def tokenizer_of(family: Template, folder: Path) -> HubTokenizer:
    marks = tuple(dict.fromkeys(("<|im_start|>", "<|im_end|>", *family.special.split())))
    (folder / "tokenizer.json").write_text(NotationTokenizer(PLAIN, marks).to_json())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": family.jinja,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return HubTokenizer(folder)


QUESTIONS = ("Read a.md and write it.", "Go on with the code.")


def asked(url: str) -> list[Answer]:
    """The answers that the chat client shows, streamed."""
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": each}}}
        for name, each in SCHEMAS.items()
    ]
    shown: list[Answer] = []
    questions, messages = list(QUESTIONS), list[Any]()
    with openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0) as client:
        while questions:
            messages.append({"role": "user", "content": questions.pop(0)})
            calls: Any = None
            while calls is None or calls:
                with client.chat.completions.stream(model="tiny", messages=messages, tools=tools) as stream:
                    message = stream.get_final_completion().choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                calls = message.tool_calls or ()
                made = tuple((call.function.name, json.loads(call.function.arguments)) for call in calls)
                thoughts = getattr(message, "reasoning_content", None) or ""
                shown.append(Answer(thoughts, message.content or "", made))
                for at, call in enumerate(calls):
                    result = f"result {len(shown)}-{at}."
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return shown


@pytest.mark.parametrize("name", sampled(FAMILIES, ("gpt-oss", "Kimi K2", "Qwen 3 Coder")))
def test_nothing_is_lost_in_ten_answers(name: str, tmp_path: Path) -> None:
    """Files with the notation's own marks, names with dots, thoughts and calls together."""
    family = FAMILIES[name]
    meant = tuple(answers(family))
    messages = [_message(answer, f"{number}", family) for number, answer in enumerate(meant)]
    model = Model(tuple(map(family.written, messages)))
    with playing(model.next_text, tokenizer_of(family, tmp_path)) as played:
        assert asked(played.url) == list(meant)
        for message, (before, behind) in zip(messages, pairwise(model.prompts), strict=False):
            assert behind.startswith(before + family.remembered(message))
