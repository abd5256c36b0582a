"""All agents. A file of its own because the command and the page that is written from it both go through
them, and the description that each one keeps must not know the others."""

from __future__ import annotations

from api.cli.launch import aider, claude, codex, opencode, qwen
from api.cli.launch.agent import Agent

AGENTS: dict[str, Agent] = {
    agent.name: agent for agent in (claude.AGENT, codex.AGENT, opencode.AGENT, qwen.AGENT, aider.AGENT)
}
"""Name -> agent."""
