"""`penstock launch` as a user types it: a shell script stands in for the agent, in an empty HOME."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from api.cli import running_server
from api.cli.errors import OperatorError
from api.cli.launch.command import launch
from scheduler.shared.user_cache import user_cache_folder
from tests.api.dialects.test_chat_tools import HERMES
from tests.fakes.played_server import PlayedServer, playing

SECONDS = 60
ROOT = Path(__file__).parents[4]
CLOSED = "http://127.0.0.1:9"
ASK = """#!{python} -S
import json, os, sys, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
body = {{"model": sys.argv[4], "messages": [{{"role": "user", "content": "Hello"}}]}}
headers = {{"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
with urllib.request.urlopen(asked) as answer:
    said = json.load(answer)["choices"][0]["message"]["content"]
with open(os.environ["RECORD"], "w") as record:
    json.dump([sys.argv[1:], dict(os.environ), said], record)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PlayedServer]:
    with playing(lambda number, prompt: "The heron stands.", HERMES) as played:
        yield played


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HOME is empty, PATH has `qwen` and what a shell has; nothing listens at the default address."""
    (tmp_path / "bin").mkdir()
    agent = tmp_path / "bin" / "qwen"
    agent.write_text(ASK.format(python=sys.executable))
    agent.chmod(0o755)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    monkeypatch.setattr(running_server, "DEFAULT_URL", CLOSED)
    return folder


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(launch, arguments)


def record(home: Path) -> Any:
    return json.loads((home.parent / "record").read_text())


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "api", "launch", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_an_agent_takes_the_commands_place(server: PlayedServer, home: Path) -> None:
    """Terminal, signals and exit code are its own; its configuration is a file in the user's caches alone."""
    done = launched("qwen", "--url", server.url, "--", "-p", "two words")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    arguments, environment, said = record(home)
    assert said == "The heron stands."
    assert arguments == ["--auth-type", "openai", "--model", "tiny", "-p", "two words"]
    assert environment["OPENAI_BASE_URL"] == f"{server.url}/v1"
    assert environment["QWEN_CODE_MAX_OUTPUT_TOKENS"] == "10240"
    configuration = Path(environment["QWEN_CODE_SYSTEM_DEFAULTS_PATH"])
    assert json.loads(configuration.read_text())["model"]["generationConfig"]["contextWindowSize"] > 0
    assert [path for path in home.rglob("*") if path.is_file()] == [configuration]
    assert configuration.is_relative_to(user_cache_folder({"HOME": str(home)}))


def test_what_cannot_be_run_is_an_error(server: PlayedServer, home: Path) -> None:
    (home.parent / "bin" / "qwen").write_text("#!/no/such/program\n")
    done = launched("qwen", "--url", server.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot run " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_served_model_may_be_chosen(server: PlayedServer, home: Path) -> None:
    assert launched("--url", server.url, "--model", "owner/alias", "qwen").returncode == 3
    assert record(home)[0][3] == "owner/alias"


def test_an_agent_that_is_absent_is_named_with_its_installation(server: PlayedServer, home: Path) -> None:
    done = typed("--url", server.url, "codex")
    assert str(done.exception) == (
        "Codex is not installed: no codex on PATH. Install it: npm install -g @openai/codex"
    )


def test_a_server_that_is_not_there_is_an_error(home: Path) -> None:
    """None is started where one was named."""
    error = typed("--url", CLOSED, "qwen").exception
    assert isinstance(error, OperatorError)
    assert "no server answers at http://127.0.0.1:9" in str(error)
    assert "penstock serve" in str(error)


def test_a_model_that_is_not_served_is_an_error(server: PlayedServer, home: Path) -> None:
    error = typed("--url", server.url, "--model", "gpt", "qwen").exception
    assert isinstance(error, OperatorError)
    assert "does not serve the model 'gpt'" in str(error)


@pytest.mark.parametrize("arguments", [("cursor",), (), ("qwen", "-p"), ("qwen", "--url", "ftp://x")])
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], home: Path) -> None:
    assert typed(*arguments).exit_code == 2
