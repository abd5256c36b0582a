"""What `api/AGENTS.md` says of agents is what `penstock launch` does."""

from __future__ import annotations

from api.cli.launch.command import AGENTS
from tests.api import test_agents
from tests.api.agents_page import PAGE, page


def test_the_page_is_true() -> None:
    """`python -m tests.api.agents_page` writes it again."""
    assert PAGE.read_text() == page()


def test_what_each_agent_sends_is_kept() -> None:
    """By the name of its executable."""
    kept = {name.partition("_")[0] for name in test_agents.AGENTS}
    assert {agent.executable for agent in AGENTS.values()} <= kept
