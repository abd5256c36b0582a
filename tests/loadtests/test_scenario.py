"""Scenario files: the shipped ones load and can be walked through, and invalid ones are refused by name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.scenario import Closed, Scenario, ScenarioError, load, shipped
from loadtests.workload import Session, Workload

NAMES = sorted(shipped())

MINIMAL = """
name = "minimal"
description = "a test"
[[populations]]
name = "clients"
arrivals = { kind = "closed", clients = 2 }
"""


@pytest.fixture
def minimal(tmp_path: Path) -> str:
    path = tmp_path / "minimal.toml"
    path.write_text(MINIMAL)
    return str(path)


def walk(session: Session) -> int:
    """Every turn, and its subagents'; the number of requests."""
    requests = 0
    for turn in range(1, session.turns + 1):
        assert session.gap_before(turn) >= 0
        wish = session.ask(turn)
        assert wish.max_tokens >= 1
        assert all(message["content"] for message in wish.messages)
        assert 0 <= wish.reusable_share <= 1
        session.answered(turn, f"answer {turn}")
        requests += 1 + sum(walk(child) for child in session.subagents(turn))
    return requests


def first_sessions(scenario: Scenario) -> list[Session]:
    workload = Workload(scenario, "salt", 1.0)
    if scenario.replay is not None:
        return [session for _, session in workload.trace()]
    return [
        workload.session(population, number) for population in scenario.populations for number in range(4)
    ]


def test_the_scenarios_of_the_issue_ship() -> None:
    """Each by its name, and a replay of each format."""
    assert {
        "throughput", "cold-burst", "agents", "long-prompt", "mixed", "cancel", "antagonist", "overload",
        "cold-among-hot", "slow-readers", "soak", "replay", "replay-sharegpt", "replay-openai",
    } == set(NAMES)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_scenario_can_be_walked_through(name: str) -> None:
    """It loads under its file's name, and its sessions produce valid requests."""
    scenario = load(name)
    assert scenario.name == name
    assert sum(walk(session) for session in first_sessions(scenario)) >= 4


@pytest.mark.parametrize("name", NAMES)
def test_what_a_shipped_file_says_to_set_can_be_set(name: str) -> None:
    """The options for a Mac are in a comment, where no other check would notice that they are outdated."""
    comments = " ".join(re.findall(r"^#(.*)$", shipped()[name].read_text(), re.MULTILINE))
    overrides = re.findall(r"--set ('[^']+'|[^\s,;.()]+(?:\.[^\s,;.()]+)*)", comments)
    scale = re.search(r"--token-scale (\d+(?:\.\d+)?)", comments)
    assert overrides
    changed = load(name, tuple(shlex.split(" ".join(overrides))), float(scale[1]) if scale else 1.0)
    assert changed != load(name)


def test_overrides_change_any_value_of_a_population_or_the_whole(minimal: str) -> None:
    """By dotted path, the population by its name, values as TOML or else as text."""
    scenario = load(
        minimal,
        (
            "clients.arrivals.clients=7",
            "clients.prompt.shared_tokens = 100",
            "clients.output={least=3, most=4}",
            "clients.hang_up={share=0.5, after_deltas=[1,2]}",
            "bounds.seconds=2.5",
            "fresh=false",
            "description=other words",
        ),
    )
    (clients,) = scenario.populations
    assert clients.arrivals == Closed(kind="closed", clients=7)
    assert clients.prompt.shared_tokens == 100
    assert (clients.output.least, clients.output.most) == (3, 4)
    assert clients.hang_up is not None
    assert clients.hang_up.after_deltas == (1, 2)
    assert (scenario.bounds.seconds, scenario.fresh, scenario.description) == (2.5, False, "other words")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed", "write it as path.to.value=VALUE"),
        ("seed.deeper=1", "seed: "),
        ("clients.arrivals.clients.n=1", "there is no 'clients' to set anything in"),
        ("populations.clients.name=1", "there is no 'populations'"),
        ("nobody.prompt.shared_tokens=1", "nobody: Extra inputs"),
        ("clients.prompt.shard_tokens=1", "prompt.shard_tokens: Extra inputs"),
        ("clients.output.least=65", "`most` is less than `least`"),
        ("clients.turns.least=2", "`most` is less than `least`"),
        ("clients.hang_up.share=0.5", "give after_deltas or"),
        ("clients.arrivals.kind=sometimes", "'sometimes'"),
        ("bounds.seconds=inf", "bounds.seconds"),
        ("replay={file='x', format='openai'}", "and not both"),
    ],
)
def test_a_wrong_override_is_named(minimal: str, override: str, said: str) -> None:
    """One line that names it, or its place in the document."""
    with pytest.raises(ScenarioError, match=re.escape(said)):
        load(minimal, (override,))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "minimal.toml: "),
        (MINIMAL + 'arrivels = "x"', "populations.0.arrivels: Extra inputs"),
        (
            MINIMAL + MINIMAL.partition("[[")[1] + MINIMAL.partition("[[")[2],
            "two populations have the same name",
        ),
        ('name = "x"\ndescription = "x"', "give populations or a replay"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    """With its path and the place."""
    path = tmp_path / "minimal.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=re.escape(said)):
        load(str(path))


def test_a_scenario_that_is_not_there_lists_those_that_are() -> None:
    """So that a typing error is found."""
    with pytest.raises(
        ScenarioError, match=r"'agent' is neither a file nor one of the scenarios agents, antagonist"
    ):
        load("agent")


def test_a_trace_lies_beside_its_scenario_and_an_override_where_the_user_is(tmp_path: Path) -> None:
    """So that a folder of scenarios can be moved."""
    path = tmp_path / "replay.toml"
    path.write_text(
        'name = "x"\ndescription = "x"\n[replay]\nfile = "sub/trace.jsonl"\nformat = "openai"\n', "utf-8"
    )
    replay = load(str(path)).replay
    assert replay is not None
    assert replay.file == str(tmp_path / "sub" / "trace.jsonl")
    replay = load(str(path), ("replay.file=mine.jsonl",)).replay
    assert replay is not None
    assert replay.file == "mine.jsonl"


@settings(derandomize=True, deadline=None)
@given(scale=st.floats(0.001, 100.0))
def test_the_token_scale_changes_prompts_and_nothing_else(scale: float) -> None:
    """Every length of a prompt, at least one token, and none that was absent."""
    plain, scaled = load("agents"), load("agents", token_scale=scale)
    before, after = plain.populations[0], scaled.populations[0]
    for layer in ("shared_tokens", "group_tokens", "private_tokens"):
        assert getattr(after.prompt, layer) == max(1, round(getattr(before.prompt, layer) * scale))
    assert after.turns.growth_tokens == max(1, round(before.turns.growth_tokens * scale))
    assert (after.output, after.arrivals, after.subagents) == (
        before.output,
        before.arrivals,
        before.subagents,
    )
    assert scaled.bounds == plain.bounds
    assert load("throughput", token_scale=scale).populations[0].prompt.shared_tokens == 0


def test_the_token_scale_reaches_defaults_and_traces(minimal: str) -> None:
    """Default lengths scale too."""
    assert load(minimal, token_scale=0.5).populations[0].prompt.private_tokens == 32
    plain, scaled = load("replay").replay, load("replay", token_scale=2.0).replay
    assert plain is not None
    assert scaled is not None
    assert scaled.token_scale == pytest.approx(2 * plain.token_scale)


def test_a_scenario_without_a_population() -> None:
    """An unknown name is an error that lists the known ones."""
    whole = load("long-prompt")
    assert [p.name for p in whole.without("book").populations] == ["streams"]
    with pytest.raises(ScenarioError, match="streams, book"):
        whole.without("flood")
