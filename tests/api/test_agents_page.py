"""What the pages say of agents is what `penstock launch` does; `test_agents.py` sends what they ask."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from api.cli.launch.agents import AGENTS, NO_KEY, LaunchTarget
from api.cli.running_server import DEFAULT_URL, ListedModel
from tests.clients import outcomes
from tests.clients.agent_sessions import EXAMPLES

BOOK = Path(__file__).parents[2] / "docs" / "agents"
MODEL = ListedModel("coder", 131_072)
TARGET = LaunchTarget(DEFAULT_URL, NO_KEY, MODEL, MODEL, (MODEL,))


@pytest.mark.parametrize("name", AGENTS)
def test_a_page_has_its_agents_command_and_what_it_gets(name: str) -> None:
    """As a shell's words, or as the lines of the agent's own configuration."""
    agent = AGENTS[name]
    page = (BOOK / f"{agent.title.lower().replace(' ', '-')}.md").read_text()
    assert f"`{agent.install}`" in page
    launch, setup, *_ = re.findall(r"^```(?:sh|toml|json)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert launch == f"penstock launch {name} -- {shlex.join(EXAMPLES[name])}\n"
    got = agent.setup(TARGET)
    match name:
        case "codex":
            assert tomllib.loads(setup) == tomllib.loads("\n".join(got.arguments[1::2]))
        case "opencode":
            assert json.loads(setup) == json.loads(got.environment["OPENCODE_CONFIG_CONTENT"])
        case _:
            words = shlex.split(setup.replace("\\\n", " "))
            assert {f"{key}={value}" for key, value in got.environment.items()} <= {*words}
            assert words[-len(got.arguments) - len(EXAMPLES[name]) :] == [*got.arguments, *EXAMPLES[name]]
            for variable, content in got.files.items():
                assert any(word.startswith(f"{variable}=") for word in words)
                assert json.dumps(content) in setup


def test_the_indexes_have_every_agent_and_every_session() -> None:
    index, tried = (BOOK / "index.md").read_text(), outcomes.PAGE.read_text()
    for agent in AGENTS.values():
        row = rf"^\| \[{agent.title}\].*`{agent.name}`.* {agent.first_kilobytes} kB \|$"
        assert re.search(row, index, re.MULTILINE)
        assert f"| `{agent.name}` | {agent.title} |" in tried
    assert outcomes.table() in tried
