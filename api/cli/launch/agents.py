"""All agents that `penstock launch` knows."""

from __future__ import annotations

from api.cli.launch import aider, claude, codex, opencode, qwen
from api.cli.launch.agent import Agent

AGENTS: dict[str, Agent] = {
    agent.name: agent for agent in (claude.AGENT, codex.AGENT, opencode.AGENT, qwen.AGENT, aider.AGENT)
}
"""Name -> agent."""
