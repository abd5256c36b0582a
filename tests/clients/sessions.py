"""A session with tools that a client has with a model that is played: what is asked, what the model writes,
and what must have come of it.

Six turns: a plain question, a tool that reads a file, one that edits it, a long story amid which the
client is interrupted, "go on", and a last question at another server, which knows none of it. The model
writes as Qwen3 does, thoughts and calls, and Penstock's parsers read it; what it writes is held to the
grammar that the request got, if it got one.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from llguidance import LLMatcher

from api.bodies.unknown_fields import HEADER
from api.served_models import ServedModel
from scheduler.prompt.preparation import Preparation
from scheduler.request import ChatPrompt, GenerationRequest
from scheduler.shared.messages import Begun
from scheduler.structure import Pattern
from tests.api.client import MODEL
from tests.api.dialects.test_chat_tools import HERMES
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.grammar_library import library_of
from tests.fakes.playback import PlaybackBackend
from tests.fakes.played_server import Asked, PlayedServer, playing
from tests.fakes.scheduling import FOLDER

FILE = "note.txt"
BEFORE = "the heron stands in the reeds\n"
AFTER = "a stork stands in the reeds\n"
OLD, NEW = "the heron", "a stork"

PLAIN, READ, EDIT = "Say hello to me.", f"What does {FILE} say?", f"Make it a stork in {FILE}."
STORY, ON, ELSEWHERE = "Tell me a long story.", "Please go on.", "Where are we now?"
ANSWERS = {
    PLAIN: "Hello there.",
    READ: "It says that the heron stands.",
    EDIT: "Now a stork stands there.",
    STORY: "Once upon a time " + "there was a heron, and " * 2000 + "that is the end.",
    ON: "And so they flew on.",
    ELSEWHERE: "We are elsewhere.",
}
BEGINNING, ENDING = "Once upon a time", "that is the end."
_STORY_STEP_SECONDS = 0.005
"""A byte of the story takes as long, so that the whole takes minutes; all else takes no time."""


@dataclass(frozen=True, slots=True)
class Call:
    tool: str
    arguments: Mapping[str, Any]

    @property
    def written(self) -> str:
        call = json.dumps({"name": self.tool, "arguments": dict(self.arguments)})
        return f"<think>\nI need {self.tool}.\n</think>\n\nOne moment.\n<tool_call>\n{call}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Script:
    """The calls by which a client's own tools read the file, and edit it."""

    read: tuple[Call, ...]
    edit: tuple[Call, ...]

    def next_text(self, prompt: str) -> str:
        """Return what the model writes: by the newest question, and whether a tool has answered since."""
        offered = re.findall(r"^<tool>(\S+)$", prompt.partition("<user>")[0], re.M)
        question = max(ANSWERS, key=prompt.rfind)
        asked_at = prompt.rfind(question)
        if not offered or asked_at < 0:
            # What agents ask beside the session: titles, summaries, whether it is a new topic.
            return "A title"
        calls = {READ: self.read, EDIT: self.edit}.get(question, ())
        called = prompt.count("<tool>", asked_at)
        if called >= len(calls):
            return ANSWERS[question]
        assert calls[called].tool in offered, f"{calls[called].tool} is not offered: {offered}"
        return calls[called].written


@dataclass(slots=True)
class SessionServer:
    """A server of the session's model, and what became of its story."""

    played: PlayedServer
    written: list[tuple[str, str]] = field(default_factory=list)
    """Prompt and text of each answer."""
    told: int = 0
    """How much of the story the model has written, in bytes."""

    @property
    def url(self) -> str:
        return self.played.url

    @property
    def posted(self) -> list[Asked]:
        return [asked for asked in self.played.asked if asked.content]

    def prompts_for(self, question: str) -> list[str]:
        """Return the prompts whose newest question is this one, of requests with tools."""
        return [prompt for prompt, text in self.written if text == ANSWERS[question]]

    @property
    def called(self) -> list[str]:
        """The tools that the model called, in turn."""
        found = (re.search(r'<tool_call>\n{"name": "(\w+)"', text) for _, text in self.written)
        return [match[1] for match in found if match]

    def wait_for_story(self, seconds: float = 60) -> None:
        """Return when the model is in the middle of it. Raise TimeoutError."""
        until = time.monotonic() + seconds
        while self.told < 2 * len(BEGINNING):
            if time.monotonic() > until:
                raise TimeoutError("nobody asked for the story")
            time.sleep(0.01)

    def check(self) -> None:
        """Nothing was refused, all that the model wrote was allowed, and nobody computed the story to its
        end."""
        refused = [(asked.path, asked.status) for asked in self.played.asked if asked.status >= 400]
        assert not refused, refused
        for submit, (_, text) in zip(self.played.engine.submits, self.written, strict=True):
            assert not submit.grammar or allowed(submit.grammar, text), text
        assert self.told < len(ANSWERS[STORY])

    @property
    def ignored(self) -> list[str]:
        """What the server said that it ignored."""
        named = (asked.answered.get(HEADER, "") for asked in self.played.asked)
        return sorted({name for each in named for name in each.split(",") if name})


@contextmanager
def serving_session(script: Script, model: ServedModel = MODEL) -> Iterator[SessionServer]:
    written: list[tuple[str, str]] = []

    def choose(number: int, prompt: str) -> str:
        text = script.next_text(prompt)
        written.append((prompt, text))
        return text

    with playing(choose, HERMES, model=model) as played:
        server = SessionServer(played, written)
        played.engine.step_seconds = _pace(server)
        yield server


def _pace(server: SessionServer) -> Callable[[Begun], float]:
    story = ANSWERS[STORY].encode()

    def seconds(begun: Begun) -> float:
        backend = server.played.engine.backend
        assert isinstance(backend, PlaybackBackend)
        told = [row.sequence.generated_tokens for row in backend.writing(story)]
        server.told = max([server.told, *told])
        return _STORY_STEP_SECONDS if told else 0.0

    return seconds


@cache
def _vocabulary() -> Any:
    preparation = Preparation(ByteTokenizer(HERMES), FOLDER)
    chat = ChatPrompt(({"role": "user", "content": "x"},))
    preparation.prepare(GenerationRequest("x", chat, structure=Pattern("x", "pattern")))
    return library_of(preparation)


def allowed(grammar: str, text: str) -> bool:
    """Return whether a model that is held to the grammar can write this text, and end there."""
    matcher = LLMatcher(_vocabulary()._tokenizer, grammar, log_level=0)
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())
