"""What the pages say of agents is what `penstock launch` does."""

from __future__ import annotations

from api.cli.launch.command import AGENTS
from tests.api import test_agents
from tests.api.agents_page import pages


def test_the_pages_are_true() -> None:
    """`python -m tests.api.agents_page` writes it again."""
    for path, text in pages().items():
        assert path.read_text() == text


def test_what_each_agent_sends_is_kept() -> None:
    """By the name of its executable."""
    kept = {name.partition("_")[0] for name in test_agents.AGENTS}
    assert {agent.executable for agent in AGENTS.values()} <= kept
