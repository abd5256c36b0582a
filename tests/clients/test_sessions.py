"""Clients' sessions: plain, with tools that edit a file, streamed, interrupted, and resumed elsewhere.

Libraries run wherever `make test-all` has installed them, agents' command lines where `make agents` or the
user has. What comes of a session is a row of `api/AGENTS.md`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients import agent_sessions, library_sessions, sessions
from tests.clients.outcomes import Outcome, recorded


@pytest.mark.parametrize("names", library_sessions.together(), ids="; ".join)
def test_a_librarys_sessions(names: tuple[str, ...], tmp_path: Path) -> None:
    if (absent := library_sessions.SESSIONS[names[0]].absent) is not None:
        pytest.skip(absent)
    for found in library_sessions.run_sessions(names, tmp_path):
        _compare(found)


def test_the_ai_sdk_decides() -> None:
    """It checks the answers itself: a probability of each option, their sums, means, and the choice."""
    session = library_sessions.LibrarySession("decide_ai_sdk.mjs")
    if session.absent is not None:
        pytest.skip(session.absent)
    with sessions.serving_session(library_sessions.SCRIPT) as served:
        (shown,) = library_sessions.told_by(session, (served.url, "", "", "[]"))
    types = {name: answer["type"] for name, answer in shown["answers"].items()}
    assert types == {"angry": "boolean", "team": "choice", "grade": "score", "many": "choice"}


@pytest.mark.long
@pytest.mark.parametrize("name", agent_sessions.SESSIONS)
def test_an_agents_session(name: str, tmp_path: Path) -> None:
    session = agent_sessions.SESSIONS[name]
    if session.executable is None:
        pytest.skip(f"{session.agent} is not installed: make agents")
    _compare(agent_sessions.run_session(name, tmp_path))


def _compare(found: Outcome) -> None:
    """`python -m tests.clients.outcomes` records what is new."""
    (row,) = [row for row in recorded() if row.client == found.client]
    # Agents renew themselves.
    assert found == replace(row, version=found.version)


def test_every_client_has_its_row() -> None:
    assert [row.client for row in recorded()] == [*agent_sessions.SESSIONS, *library_sessions.SESSIONS]
