"""Frameworks that agents are written with: chat, stream, and a loop with a tool, each in its own words.

They live in an environment of their own (`requirements.txt`), which `make test` builds; elsewhere
`PENSTOCK_CLIENTS_PYTHON` may name its interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_chat_tools import HERMES, SAID
from tests.fakes.played_server import PlayedServer, playing

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = Path(os.environ.get("PENSTOCK_CLIENTS_PYTHON", Path(sys.prefix, "clients", "bin", "python")))
PROGRAM_SECONDS = 100

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="the clients' environment is not there; 'make test' builds it"
)


def choose(number: int, prompt: str) -> str:
    """A model that greets, looks at the clock where it may, and tells an object where it is asked for one."""
    if "<tool>12:00" in prompt:
        return "It is noon."
    if "<tool>get_time" in prompt:
        return SAID
    if "json" in prompt.lower():
        return 'Here:\n```json\n{"zone": "UTC", "hour": 12}\n```'
    return "Hello there."


@pytest.fixture(scope="module")
def served() -> Iterator[PlayedServer]:
    with playing(choose, HERMES) as played:
        yield played


def run(program: str, served: PlayedServer) -> list[Any]:
    """What it printed, a line of JSON each. Proxies of this machine are none of its business."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    ran = subprocess.run(
        [PYTHON, PROGRAMS / f"{program}.py", served.url],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        env={**environment, "PYTHONPATH": str(PROGRAMS)},
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize(
    ("program", "ways"),
    [
        ("use_litellm", ["openai", "anthropic"]),
        ("use_langchain", ["openai", "responses", "anthropic"]),
        ("use_pydantic_ai", ["openai", "responses", "anthropic"]),
    ],
)
def test_a_framework_chats_streams_and_calls_a_tool(
    program: str, ways: list[str], served: PlayedServer
) -> None:
    """The tool gets the arguments that the model wrote, and the model gets the tool's result."""
    assert run(program, served) == [
        {
            "way": way,
            "chat": "Hello there.",
            "stream": "Hello there.",
            "called": {"zone": "UTC"},
            "answer": "It is noon.",
        }
        for way in ways
    ]


def test_instructor_gets_its_object(served: PlayedServer) -> None:
    """Whole, and from a stream."""
    assert run("use_instructor", served) == [{"zone": "UTC", "hour": 12}] * 2
