"""The session of each agent's command line, started by `penstock launch` in a HOME that has only settings of
the user's own, for another server: they must not be heard, and must be unchanged when the agent is over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.api.client import MODEL
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

ROOT = Path(__file__).parents[2]
INSTALLED = Path(sys.prefix, "agents")
"""Where `make agents` installs them."""
_SECONDS = 400
_PATCH = f"*** Begin Patch\n*** Update File: {FILE}\n@@\n-{BEFORE}+{AFTER}*** End Patch\n"


@dataclass(frozen=True, slots=True)
class AgentSession:
    """How an agent takes a turn, and the tools by which it reads and edits."""

    agent: str
    """As `penstock launch` calls it."""
    first: Callable[[str], tuple[str, ...]]
    again: Callable[[str], tuple[str, ...]]
    """Goes on with the newest session."""
    script: Callable[[Path], Script]
    served: str = "tiny"
    served_elsewhere: str = "tiny"

    @property
    def executable(self) -> str | None:
        return shutil.which(self.agent, path=search_path())


def search_path() -> str:
    return os.pathsep.join(
        [str(INSTALLED / "node_modules" / ".bin"), str(INSTALLED / "bin"), os.environ["PATH"]]
    )


_ELSEWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""
_OPENCODE = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": _ELSEWHERE}, "models": {"own": {}}}
_OWN: dict[str, tuple[str, Any]] = {
    "claude": (
        ".claude/settings.json",
        {"env": {"ANTHROPIC_BASE_URL": _ELSEWHERE, "ANTHROPIC_MODEL": "own"}},
    ),
    "codex": (
        ".codex/config.toml",
        'model = "own"\nmodel_provider = "own"\n'
        f'[model_providers.own]\nname = "own"\nbase_url = "{_ELSEWHERE}/v1"\n',
    ),
    "opencode": (
        ".config/opencode/opencode.json",
        # It adds the first line itself where it is absent.
        {"$schema": "https://opencode.ai/config.json", "model": "own/own", "provider": {"own": _OPENCODE}},
    ),
    "qwen": (
        ".qwen/settings.json",
        {
            "model": {"name": "own"},
            "security": {"auth": {"baseUrl": _ELSEWHERE, "apiKey": "own"}},
            "$version": 4,
        },
    ),
}
"""By agent: a file in HOME, and its text or its object."""


def _claude(folder: Path) -> Script:
    note = str(folder / FILE)
    edit = {"file_path": note, "old_string": OLD, "new_string": NEW}
    return Script((Call("Read", {"file_path": note}),), (Call("Edit", edit),))


def _codex(folder: Path) -> Script:
    patch = f"apply_patch <<'END'\n{_PATCH}END"
    return Script((Call("exec_command", {"cmd": f"cat {FILE}"}),), (Call("exec_command", {"cmd": patch}),))


def _known_codex(folder: Path) -> Script:
    return replace(_codex(folder), edit=(Call("apply_patch", {"input": _PATCH}),))


def _opencode(folder: Path) -> Script:
    note = str(folder / FILE)
    edit = {"filePath": note, "oldString": OLD, "newString": NEW}
    return Script((Call("read", {"filePath": note}),), (Call("edit", edit),))


def _qwen(folder: Path) -> Script:
    note = str(folder / FILE)
    edit = {"file_path": note, "old_string": OLD, "new_string": NEW}
    read = Call("read_file", {"file_path": note})
    # Each turn is a process, which must have read what it edits.
    return Script((read,), (read, Call("edit", edit)))


_CODEX = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_CLAUDE = ("--allowedTools", "Read,Edit")


def _codex_session(served: str, elsewhere: str, script: Callable[[Path], Script]) -> AgentSession:
    return AgentSession(
        "codex",
        lambda said: ("exec", *_CODEX, said),
        lambda said: ("exec", "resume", "--last", *_CODEX, said),
        script,
        served,
        elsewhere,
    )


SESSIONS = {
    "Claude Code": AgentSession(
        "claude",
        lambda said: ("-p", said, *_CLAUDE),
        lambda said: ("--continue", "-p", said, *_CLAUDE),
        _claude,
    ),
    "Codex": _codex_session("tiny", "gpt-5.5", _codex),
    "Codex, a model that it knows": _codex_session("gpt-5.5", "tiny", _known_codex),
    "OpenCode": AgentSession(
        "opencode", lambda said: ("run", said), lambda said: ("run", "--continue", said), _opencode
    ),
    "Qwen Code": AgentSession(
        "qwen", lambda said: ("-y", "-p", said), lambda said: ("--continue", "-y", "-p", said), _qwen
    ),
}
"""Client -> its session."""
EXAMPLES: dict[str, tuple[str, ...]] = {
    **{session.agent: session.first(READ) for session in SESSIONS.values()},
    "claude": ("-p", READ, "--allowedTools", "Read"),
    "aider": ("--edit-format", "diff", "--no-git", "--yes-always", "--message", "Make it a stork", FILE),
}
"""Each agent's own arguments for one question without asking back, as its page has them."""


class _Runner:
    def __init__(self, session: AgentSession, folder: Path) -> None:
        self._agent = session.agent
        self.work = folder / "work"
        home = folder / "home"
        self.work.mkdir(parents=True)
        name, own = _OWN[session.agent]
        self.settings = own if isinstance(own, str) else json.dumps(own)
        self.own = home / name
        self.own.parent.mkdir(parents=True)
        self.own.write_text(self.settings)
        # As a shell has it: OpenCode takes the folder from PWD.
        kept = {
            name: text
            for name, text in os.environ.items()
            if name != "PENSTOCK_URL" and not name.startswith("XDG_")
        }
        self._environment = {
            **kept,
            "HOME": str(home),
            "PWD": str(self.work),
            "PATH": search_path(),
            "PYTHONPATH": str(ROOT),
        }

    def start(self, url: str, words: tuple[str, ...]) -> subprocess.Popen[str]:
        command = (sys.executable, "-m", "api", "launch", "--url", url, self._agent, "--", *words)
        return subprocess.Popen(
            command,
            cwd=self.work,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, url: str, words: tuple[str, ...], answer: str) -> None:
        """Raise AssertionError unless the agent shows this answer."""
        process = self.start(url, words)
        try:
            out, errors = process.communicate(timeout=_SECONDS)
        finally:
            _end(process, signal.SIGKILL)
        shown = (words, process.returncode, out[-2000:], errors[-4000:])
        assert process.returncode == 0, shown
        assert answer in out, shown

    def version(self, executable: str) -> str:
        done = subprocess.run(
            [executable, "--version"], env=self._environment, capture_output=True, text=True, timeout=_SECONDS
        )
        return done.stdout.split("(")[0].strip().rpartition(" ")[2] or done.stdout.strip()


def _end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """To all of its processes, as a terminal does."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def run_session(name: str, folder: Path) -> Outcome:
    """Have the session and return what came of it. Raise AssertionError where it is not as it must be."""
    session = SESSIONS[name]
    executable = session.executable
    assert executable is not None
    runner = _Runner(session, folder)
    script = session.script(runner.work)
    note = runner.work / FILE
    note.write_text(BEFORE)
    with serving_session(script, replace(MODEL, names=(session.served,))) as server:
        runner.run(server.url, session.first(PLAIN), ANSWERS[PLAIN])
        runner.run(server.url, session.again(READ), ANSWERS[READ])
        runner.run(server.url, session.again(EDIT), ANSWERS[EDIT])
        assert note.read_text() == AFTER
        process = runner.start(server.url, session.again(STORY))
        server.wait_for_story()
        _end(process, signal.SIGINT)
        try:
            process.communicate(timeout=_SECONDS)
        finally:
            _end(process, signal.SIGKILL)
        runner.run(server.url, session.again(ON), ANSWERS[ON])
        with serving_session(script, replace(MODEL, names=(session.served_elsewhere,))) as elsewhere:
            runner.run(elsewhere.url, session.again(ELSEWHERE), ANSWERS[ELSEWHERE])
    assert runner.own.read_text() == runner.settings
    spoken = "kept" if BEGINNING in server.prompts_for(ON)[-1] else "dropped"
    return outcome(
        name, runner.version(executable), (server, elsewhere), f"SIGINT; what it had of the answer: {spoken}"
    )
