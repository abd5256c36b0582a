"""Each agent that is installed here, started by `penstock launch` with a model that has it use a tool:

    python -m tests.clients.agents [claude codex opencode qwen aider] [--keep FOLDER]

Each runs in a HOME that has only settings of the user's own, for another server: they must not be heard, and
must be there unchanged when the agent is over. `api/AGENTS.md` has what came of it: version and date.
Exits 1 where an agent did not show what the file in its folder says.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from api.cli.launch.agents import AGENTS, Agent
from tests.api import client
from tests.api.dialects.test_chat_tools import HERMES
from tests.fakes.played_server import PlayedServer, playing

FILE = "note.txt"
TEXT = "the heron stands in the reeds"
ANSWER = "It says that the heron stands."
SECONDS = 300
MODEL = replace(client.MODEL, context_tokens=1 << 20)
"""Every byte of a prompt is a token."""
EXAMPLES = {
    "claude": ("-p", "What does note.txt say?", "--allowedTools", "Read"),
    "codex": (
        *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        "What does note.txt say?",
    ),
    "opencode": ("run", "What does note.txt say?"),
    "qwen": ("-y", "-p", "What does note.txt say?"),
    "aider": (
        *("--edit-format", "diff", "--no-git", "--yes-always", "--message", "Make it a stork"),
        "note.txt",
    ),
}
"""Each agent's own arguments for one question without asking back, as its page has them."""
ELSEWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""


@dataclass(frozen=True, slots=True)
class Script:
    """What the model writes first, by the tool that the agent offers; and the user's own settings."""

    tool: str
    arguments: Mapping[str, str]
    settings: tuple[str, str]
    """A file in HOME, and its text."""


def scripts(folder: Path) -> dict[str, Script]:
    note = str(folder / FILE)
    claude = {
        "env": {"ANTHROPIC_BASE_URL": ELSEWHERE, "ANTHROPIC_AUTH_TOKEN": "own", "ANTHROPIC_MODEL": "own"}
    }
    opencode = {
        # It adds this line itself where it is absent.
        "$schema": "https://opencode.ai/config.json",
        "model": "own/own",
        "provider": {
            "own": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": ELSEWHERE},
                "models": {"own": {}},
            }
        },
    }
    qwen = {
        "model": {"name": "own"},
        "security": {"auth": {"baseUrl": ELSEWHERE, "apiKey": "own"}},
        "$version": 4,
    }
    provider = f'[model_providers.own]\nname = "own"\nbase_url = "{ELSEWHERE}/v1"\n'
    codex = f'model = "own"\nmodel_provider = "own"\n{provider}'
    return {
        "claude": Script("Read", {"file_path": note}, (".claude/settings.json", json.dumps(claude))),
        "codex": Script("exec_command", {"cmd": f"cat {FILE}"}, (".codex/config.toml", codex)),
        "opencode": Script(
            "read", {"filePath": note}, (".config/opencode/opencode.json", json.dumps(opencode))
        ),
        "qwen": Script(
            "read_file", {"file_path": note, "absolute_path": note}, (".qwen/settings.json", json.dumps(qwen))
        ),
        "aider": Script("", {}, (".env", f"OPENAI_API_BASE={ELSEWHERE}\nOPENAI_API_KEY=own\n")),
    }


def _said(script: Script, prompt: str) -> str:
    if not script.tool:
        return f"{FILE}\n```\n<<<<<<< SEARCH\n{TEXT}\n=======\na stork stands there\n>>>>>>> REPLACE\n```\n"
    if f"<tool>{script.tool}" not in prompt:
        return "A title"
    if TEXT in prompt:
        return ANSWER
    call = json.dumps({"name": script.tool, "arguments": dict(script.arguments)})
    return f"I read it.\n<tool_call>\n{call}\n</tool_call>"


def try_agent(agent: Agent, folder: Path) -> tuple[bool, str]:
    """Run it once. Return whether it did what the model said, and a line about it."""
    home, work = folder / "home", folder / "work"
    work.mkdir(parents=True)
    (work / FILE).write_text(f"{TEXT}\n")
    script = scripts(work)[agent.name]
    own = home / script.settings[0]
    own.parent.mkdir(parents=True)
    own.write_text(script.settings[1])
    # As a shell has it: OpenCode takes the folder from PWD.
    environment = {**os.environ, "HOME": str(home), "PWD": str(work)}
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "PENSTOCK_URL"):
        environment.pop(name, None)
    version = _run((agent.name, "--version"), work, environment).stdout.strip()
    with playing(lambda number, prompt: _said(script, prompt), HERMES, model=MODEL) as played:
        command = (
            sys.executable,
            "-m",
            "api",
            "launch",
            "--url",
            played.url,
            agent.name,
            "--",
            *EXAMPLES[agent.name],
        )
        done = _run(command, work, environment)
    (folder / "out").write_text(done.stdout + done.stderr)
    shown = ANSWER in done.stdout if script.tool else (work / FILE).read_text() == "a stork stands there\n"
    unchanged = own.read_text() == script.settings[1]
    good = shown and unchanged and done.returncode == 0
    said = f"{version}; exit {done.returncode}; {'' if shown else 'NOT '}shown; own settings"
    return good, f"{said} {'kept' if unchanged else 'CHANGED'}; {_requests(played)}"


def _requests(played: PlayedServer) -> str:
    posted = [asked for asked in played.asked if asked.content]
    answered = ", ".join(f"{asked.path} {asked.status}" for asked in posted)
    return f"{max(len(asked.content) for asked in posted[:2]) // 1000} kB first; {answered}"


def _run(
    command: tuple[str, ...], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment, "PYTHONPATH": root},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("agents", nargs="*", help=f"of {', '.join(AGENTS)}; default: all")
    parser.add_argument(
        "--keep", type=Path, help="a folder that does not exist: what agents wrote stays there"
    )
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.agents or AGENTS:
            if shutil.which(name) is None:
                print(f"{name}: not installed: {AGENTS[name].install}")
                continue
            fine, line = try_agent(AGENTS[name], (options.keep or Path(temporary)) / name)
            good &= fine
            print(f"{name}: {line}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
