"""Scenario files: the shipped ones load and can be walked through, and invalid ones are refused by name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from loadtests.scenario import Closed, ScenarioError, load, shipped
from loadtests.workload import Session, Workload

NAMES = sorted(shipped())
MINIMAL = """
name = "minimal"
description = "a test"
[[populations]]
name = "clients"
arrivals = { kind = "closed", clients = 2 }
"""


AGAIN = "{name='clients', arrivals={kind='burst', clients=1}}"


@pytest.fixture
def minimal(tmp_path: Path) -> str:
    path = tmp_path / "minimal.toml"
    path.write_text(MINIMAL)
    return str(path)


def walk(session: Session) -> int:
    """Every turn, and its subagents'; the number of requests."""
    requests = 0
    for turn in range(1, session.turns + 1):
        wish = session.ask(turn)
        assert wish.max_tokens >= 1
        assert all(message["content"] for message in wish.messages)
        session.answered(f"answer {turn}")
        requests += 1 + sum(walk(child) for child in session.subagents(turn))
    return requests


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_scenario_can_be_walked_through(name: str) -> None:
    """It loads under its file's name, and its sessions produce valid requests. What its comment says to set
    for a Mac can be set: no other check would notice that it is outdated."""
    scenario = load(name)
    assert scenario.name == name
    workload = Workload(scenario, "salt", 1.0)
    assert all(walk(workload.session(one, n)) for one in scenario.populations for n in range(4))
    comments = " ".join(re.findall(r"^#(.*)$", shipped()[name].read_text(), re.MULTILINE))
    overrides = re.findall(r"--set ('[^']+'|[^\s,;.()]+(?:\.[^\s,;.()]+)*)", comments)
    assert overrides
    assert load(name, tuple(shlex.split(" ".join(overrides)))) != scenario


def test_overrides_change_any_value_of_a_population_or_the_whole(minimal: str) -> None:
    """By dotted path, the population by its name, values as TOML or else as text."""
    changes = ("clients.arrivals.clients=7", "clients.prompt.shared_tokens = 100", "description=other words")
    scenario = load(minimal, (*changes, "clients.output={least=3, most=4}", "bounds.seconds=2.5"))
    (clients,) = scenario.populations
    assert clients.arrivals == Closed(kind="closed", clients=7)
    assert (clients.prompt.shared_tokens, clients.output.least, clients.output.most) == (100, 3, 4)
    assert (scenario.bounds.seconds, scenario.description) == (2.5, "other words")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed", "write it as path.to.value=VALUE"),
        ("seed.deeper=1", "seed: "),
        ("nobody.prompt.shared_tokens=1", "nobody: Extra inputs"),
        ("clients.prompt.shard_tokens=1", "prompt.shard_tokens: Extra inputs"),
        ("clients.output.least=65", "`most` is less than `least`"),
        ("populations=[]", "populations: "),
        (f"populations=[{AGAIN}, {AGAIN}]", "two populations have the same name"),
        ("bounds.seconds=inf", "bounds.seconds"),
    ],
)
def test_a_wrong_override_is_named(minimal: str, override: str, said: str) -> None:
    """One line that names it, or its place in the document; a file that is not there with those that are."""
    with pytest.raises(ScenarioError, match=re.escape(said)):
        load(minimal, (override,))
    with pytest.raises(ScenarioError, match="neither a file nor one of the scenarios agents, antagonist"):
        load("agent")
