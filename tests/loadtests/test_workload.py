"""Sessions: the same for the same number, whatever else runs; histories that only grow; layers that are
shared exactly."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.scenario import Scenario
from loadtests.workload import NO_ANSWER, Seen, Session, Workload


def scenario(*populations: dict[str, Any], **settings: Any) -> Scenario:
    everyone = [
        {"name": f"p{number}", "arrivals": {"kind": "closed", "clients": 1}} | population
        for number, population in enumerate(populations)
    ]
    document = {"name": "test", "description": "test", "populations": everyone} | settings
    return Scenario.model_validate(document)


def workload(plan: Scenario, salt: str = "salt") -> Workload:
    return Workload(plan, salt, 1.0)


def asks(session: Session) -> list[tuple[Any, ...]]:
    """Return all turns, each followed by its subagents', but what depends on the others' prompts."""
    said: list[tuple[Any, ...]] = []
    for turn in range(1, session.turns + 1):
        one = session.ask(turn)
        said.append((session.gap_before(turn), one.messages, one.max_tokens, one.exact, one.sampling))
        session.answered(f"yes {turn}")
        for child in session.subagents(turn):
            said += asks(child)
    return said


RICH: dict[str, Any] = {
    "prompt": {"shared_tokens": 12, "group_tokens": 8, "groups": 3, "private_tokens": 5},
    "turns": {"least": 1, "most": 5, "growth_tokens": 6, "gap_median_seconds": 1.0, "gap_sigma": 1.0},
    "output": {"least": 3, "most": 30, "exact": False},
    "sampling": "mixed",
    "subagents": {"at_turn": 2, "count": 2, "turns": 2},
}


@settings(deadline=None)
@given(
    order=st.permutations([(population, number) for population in (0, 1) for number in range(4)]),
    seed=st.integers(0, 5),
)
def test_a_session_does_not_depend_on_the_others(order: list[tuple[int, int]], seed: int) -> None:
    """Made and run in any order, or alone, it is the same."""
    plan = scenario(RICH, RICH, seed=seed)
    together = workload(plan)
    sessions = [(p, n, together.session(plan.populations[p], n)) for p, n in order]
    random.Random(seed).shuffle(sessions)
    for population, number, session in sessions:
        alone = workload(plan).session(plan.populations[population], number)
        assert (alone.id, alone.turns) == (session.id, session.turns)
        assert asks(alone) == asks(session)


@settings(deadline=None)
@given(answers=st.lists(st.one_of(st.none(), st.text(max_size=8)), min_size=4, max_size=4))
def test_a_conversation_only_grows(answers: list[str | None]) -> None:
    """Each prompt begins with the last one and its real answer, in place; a missing answer has a
    placeholder."""
    plan = scenario({"turns": {"least": 4, "most": 4}})
    session = workload(plan).session(plan.populations[0], 0)
    before: tuple[dict[str, str], ...] = ()
    for turn, answer in enumerate(answers, 1):
        messages = session.ask(turn).messages
        assert messages[: len(before)] == before
        assert [message["role"] for message in messages[len(before) :]] == ["user"]
        if answer is not None:
            session.answered(answer)
        before = (*messages, {"role": "assistant", "content": NO_ANSWER if answer is None else answer})


@settings(deadline=None)
@given(
    lengths=st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 60)),
    groups=st.integers(1, 3),
    scale=st.integers(1, 3),
)
def test_layers_are_a_common_prefix(lengths: tuple[int, int, int], groups: int, scale: int) -> None:
    """The shared text opens every system message, one of the groups' follows, the rest is the session's own;
    each with its length, times the scenario's scale."""
    shared, group, private = lengths
    layers = {"shared_tokens": shared, "group_tokens": group, "groups": groups, "private_tokens": private}
    plan = scenario({"prompt": layers}, {"prompt": layers}, token_scale=scale)
    run = workload(plan)
    firsts = [run.session(p, number).ask(1).messages for p in plan.populations for number in range(5)]
    assert all(len(first[-1]["content"].split()) == private * scale for first in firsts)
    assert len({first[-1]["content"] for first in firsts}) >= (10 if private > 5 else 1)
    assert [one["role"] for one in firsts[0]] == (["system", "user"] if shared or group else ["user"])
    systems = {first[0]["content"] for first in firsts if shared or group}
    assert len(systems) <= (groups if group else 1)
    opening = min(systems, default="").split("\n\n")[0]
    for system in systems:
        written = system.split("\n\n")
        assert [len(one.split()) for one in written] == [n * scale for n in (shared, group) if n]
        assert not shared or written[0] == opening


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from("ab"), max_size=400), max_size=8))
def test_reuse_is_the_longest_common_prefix_but_for_the_last_piece(texts: list[str]) -> None:
    seen, before = Seen(), list[str]()
    for text in texts:
        share = seen.add([{"role": "u", "content": text}])
        common = max((len(_common(text, one)) for one in before), default=-3)
        assert -64 <= round(share * (len(text) + 3)) - (common + 3) <= 0
        before.append(text)


def _common(one: str, other: str) -> str:
    length = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return one[: min(len(one), len(other)) if length is None else length]
