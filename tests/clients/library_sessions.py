"""The session of each library, by a program of its own in `programs/`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tests.clients.outcomes import Outcome, outcome
from tests.clients.sessions import (
    AFTER,
    ANSWERS,
    BEFORE,
    BEGINNING,
    EDIT,
    ELSEWHERE,
    FILE,
    NEW,
    OLD,
    ON,
    PLAIN,
    READ,
    STORY,
    Call,
    Script,
    serving_session,
)

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = Path(os.environ.get("CLIENTS_PYTHON", Path(sys.prefix, "clients", "bin", "python")))
NODE_MODULES = Path(sys.prefix, "node-clients", "node_modules")
"""Where the Makefile installs `node/package.json`."""
_SECONDS = 400
SCRIPT = Script(
    (Call("read_file", {"path": FILE}),), (Call("edit_file", {"path": FILE, "old": OLD, "new": NEW}),)
)


@dataclass(frozen=True, slots=True)
class LibrarySession:
    program: str
    way: str = ""
    """The protocol, where its program has several."""
    seals: bool = False
    """Whether it keeps items itself (`store: false`), and sends their thoughts back sealed."""

    @property
    def absent(self) -> str | None:
        """Why it cannot run here, or None."""
        if self.program.endswith(".mjs"):
            return None if NODE_MODULES.exists() and shutil.which("node") else "no Node.js, or its libraries"
        return None if PYTHON.exists() else "the clients' environment is not there; 'make test-all' builds it"

    @property
    def process(self) -> tuple[str, str]:
        """What sessions share that have one process, in turn: to import a Python framework takes five times
        the CPU time of a session with it."""
        return (self.program, self.way if self.program.endswith(".mjs") else "")

    @property
    def command(self) -> tuple[str, str]:
        interpreter = "node" if self.program.endswith(".mjs") else str(PYTHON)
        return interpreter, str(PROGRAMS / self.program)


SESSIONS = {
    "openai-python, chat completions": LibrarySession("session_openai.py", "chat"),
    "openai-python, responses": LibrarySession("session_openai.py", "responses"),
    "anthropic-python": LibrarySession("session_anthropic.py"),
    "LangChain, chat completions": LibrarySession("session_langchain.py", "chat"),
    "LangChain, responses": LibrarySession("session_langchain.py", "responses"),
    "LangChain, messages": LibrarySession("session_langchain.py", "messages"),
    "Pydantic AI, chat completions": LibrarySession("session_pydantic_ai.py", "chat"),
    "Pydantic AI, responses": LibrarySession("session_pydantic_ai.py", "responses"),
    "Pydantic AI, messages": LibrarySession("session_pydantic_ai.py", "messages"),
    "openai-agents, responses": LibrarySession("session_openai_agents.py", "responses", seals=True),
    "openai-agents, chat completions": LibrarySession("session_openai_agents.py", "chat"),
    "openai-node, chat completions": LibrarySession("session_openai.mjs", "chat"),
    "openai-node, responses": LibrarySession("session_openai.mjs", "responses"),
    "AI SDK, `openai`": LibrarySession("session_ai_sdk.mjs", "openai"),
    "AI SDK, `openai`, `store: false`": LibrarySession("session_ai_sdk.mjs", "sealed", seals=True),
    "AI SDK, `openai-compatible`": LibrarySession("session_ai_sdk.mjs", "openai-compatible"),
    "AI SDK, `anthropic`": LibrarySession("session_ai_sdk.mjs", "anthropic"),
    "AI SDK, `open-responses`": LibrarySession("session_ai_sdk.mjs", "open-responses"),
}
"""Client -> its session."""


def together() -> list[tuple[str, ...]]:
    """Return the sessions of each process."""
    groups: dict[tuple[str, str], tuple[str, ...]] = {}
    for name, session in SESSIONS.items():
        groups[session.process] = (*groups.get(session.process, ()), name)
    return [*groups.values()]


def told_by(session: LibrarySession, given: Iterable[str]) -> list[dict[str, Any]]:
    """Run its program, and return what it told, line by line."""
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    env |= {"PYTHONPATH": str(PROGRAMS), "CLIENTS_NODE_MODULES": str(NODE_MODULES)}
    command = [*session.command, *given]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=env)
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr[-4000:]}"
    return [json.loads(line) for line in ran.stdout.splitlines()]


def run_sessions(names: Sequence[str], folder: Path) -> Iterator[Outcome]:
    """Have the sessions of one process and yield what came of each. Raise AssertionError where it is not as
    it must be."""
    sessions = [SESSIONS[name] for name in names]
    notes = [folder / str(number) / FILE for number in range(len(names))]
    for note in notes:
        note.parent.mkdir()
        note.write_text(BEFORE)
    questions = json.dumps([PLAIN, READ, EDIT, STORY, ON, ELSEWHERE])
    with ExitStack() as stack:
        servers = [
            (stack.enter_context(serving_session(SCRIPT)), stack.enter_context(serving_session(SCRIPT)))
            for _ in names
        ]
        given = [
            (server.url, elsewhere.url, str(note.parent), questions, session.way)
            for (server, elsewhere), note, session in zip(servers, notes, sessions, strict=True)
        ]
        told = told_by(sessions[0], chain(*given))
    for name, pair, note, shown in zip(names, servers, notes, told, strict=True):
        answers = [ANSWERS[question] for question in (PLAIN, READ, EDIT, ON, ELSEWHERE)]
        assert shown["answers"] == answers, (name, shown)
        assert note.read_text() == AFTER, name
        if SESSIONS[name].seals:
            assert any(b'"penstock:' in asked.content for asked in pair[0].posted), name
        assert BEGINNING in shown["had"], name
        assert BEGINNING in pair[1].prompts_for(ELSEWHERE)[-1], name
        yield outcome(name, shown["version"], pair, "in the stream; goes on behind what it had")
