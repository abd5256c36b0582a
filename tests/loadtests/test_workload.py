"""Sessions: the same for the same number, whatever else runs; histories that only grow; layers that are
shared exactly."""

from __future__ import annotations

import random
import re
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.scenario import Scenario, load
from loadtests.workload import NO_ANSWER, Ask, Session, Workload


def scenario(*populations: dict[str, Any], **settings: Any) -> Scenario:
    everyone = [
        {"name": f"p{number}", "arrivals": {"kind": "closed", "clients": 1}} | population
        for number, population in enumerate(populations)
    ]
    document = {"name": "test", "description": "test", "populations": everyone} | settings
    return Scenario.model_validate(document)


def workload(plan: Scenario, salt: str = "salt") -> Workload:
    return Workload(plan, salt, 1.0)


def asks(session: Session, answer: str = "yes") -> list[tuple[float, Ask]]:
    """Return all turns with their gaps, each followed by its subagents'."""
    said = []
    for turn in range(1, session.turns + 1):
        said.append((session.gap_before(turn), session.ask(turn)))
        session.answered(turn, f"{answer} {turn}")
        for child in session.subagents(turn):
            said += asks(child, answer)
    return said


def content(said: list[tuple[float, Ask]]) -> list[Any]:
    """Return everything except what depends on the others' prompts."""
    return [
        (gap, one.messages, one.max_tokens, one.exact, one.sampling, one.hang_up_after_deltas,
         one.hang_up_after_seconds, one.read_bytes_per_second)
        for gap, one in said
    ]  # fmt: skip


RICH: dict[str, Any] = {
    "prompt": {"shared_tokens": 12, "group_tokens": 8, "groups": 3, "private_tokens": 5},
    "turns": {"least": 1, "most": 5, "growth_tokens": 6, "gap_median_seconds": 1.0, "gap_sigma": 1.0},
    "output": {"least": 3, "most": 30, "exact": False},
    "sampling": "mixed",
    "subagents": {"at_turn": 2, "count": 2, "turns": 2},
    "hang_up": {"share": 0.5, "after_deltas": [1, 4], "while_waiting_seconds": [0.5]},
}


@settings(derandomize=True, deadline=None)
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
        assert content(asks(alone)) == content(asks(session))


def test_sessions_differ_from_each_other_and_runs_in_their_words_alone() -> None:
    """Another salt keeps lengths, gaps, sampling and hang-ups; another seed does not."""
    plan = scenario(RICH)

    def shape(said: list[tuple[float, Ask]]) -> list[Any]:
        return [
            (gap, [len(one["content"].split()) for one in ask.messages], ask.max_tokens, ask.sampling)
            for gap, ask in said
        ]

    def run(plan: Scenario, salt: str, number: int) -> list[tuple[float, Ask]]:
        return asks(workload(plan, salt).session(plan.populations[0], number))

    a, b, seeded = run(plan, "a", 0), run(plan, "b", 0), run(plan.model_copy(update={"seed": 1}), "a", 0)
    assert shape(a) == shape(b) != shape(seeded)
    system, user = zip(a[0][1].messages, b[0][1].messages, strict=True)
    for one, other in (system, user):
        assert one["content"].split()[:3] != other["content"].split()[:3]
    assert shape(a) != shape(run(plan, "a", 1))
    stale = plan.model_copy(update={"fresh": False})
    assert content(run(stale, "a", 0)) == content(run(stale, "b", 0))


@settings(derandomize=True, deadline=None)
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
            session.answered(turn, answer)
        before = (*messages, {"role": "assistant", "content": NO_ANSWER if answer is None else answer})


@settings(derandomize=True, deadline=None)
@given(
    shared=st.integers(0, 60), group=st.integers(0, 60), groups=st.integers(1, 3), private=st.integers(1, 60)
)
def test_layers_are_a_common_prefix(shared: int, group: int, groups: int, private: int) -> None:
    """The shared text opens every system message, one of the groups' follows, the rest is the session's own;
    each with its length."""
    prompt = {
        "shared_tokens": shared, "group_tokens": group, "groups": groups, "private_tokens": private
    }  # fmt: skip
    plan = scenario({"prompt": prompt}, {"prompt": prompt | {"private_tokens": private + 1}})
    run = workload(plan)
    firsts = [run.session(p, number).ask(1).messages for p in plan.populations for number in range(5)]
    assert all(len(first[-1]["content"].split()) in (private, private + 1) for first in firsts)
    assert [one["role"] for one in firsts[0]] == (["system", "user"] if shared or group else ["user"])
    systems = [first[0]["content"] for first in firsts if shared or group]
    assert len(set(systems)) <= (groups if group else 1)
    for system in systems:
        layers = system.split("\n\n")
        assert [len(layer.split()) for layer in layers] == [length for length in (shared, group) if length]
        assert not shared or layers[0] == systems[0].split("\n\n")[0]


def test_the_first_groups_have_most_of_the_sessions() -> None:
    """Group g has weight 1 / (g + 1)."""
    plan = scenario({"prompt": {"group_tokens": 4, "groups": 4}})
    run = workload(plan)
    texts = [run.session(plan.populations[0], n).ask(1).messages[0]["content"] for n in range(1200)]
    counts = sorted((texts.count(text) for text in set(texts)), reverse=True)
    assert counts == pytest.approx([1200 / (g * 25 / 12) for g in (1, 2, 3, 4)], rel=0.2)


def test_reuse_is_what_a_perfect_cache_would_have_had() -> None:
    """The second session hits the first one's system prompt, the next turn all but its own words."""
    layers = {"shared_tokens": 400, "private_tokens": 100}
    plan = scenario({"prompt": layers, "turns": {"least": 2, "most": 2, "growth_tokens": 100}})
    run = workload(plan)
    first, second = (run.session(plan.populations[0], number) for number in (0, 1))
    assert first.ask(1).reusable_share == 0
    assert second.ask(1).reusable_share == pytest.approx(0.8, abs=0.03)
    first.answered(1, "a " * 100)
    assert first.ask(2).reusable_share == pytest.approx(600 / 700, abs=0.05)


def test_gaps_are_lognormal_and_capped() -> None:
    """Half below the median, none above the cap, none before the first turn."""
    turns = {"least": 400, "most": 400, "gap_median_seconds": 2.0, "gap_sigma": 1.0, "gap_most_seconds": 9.0}
    plan = scenario({"turns": turns}, {"turns": {"least": 2, "most": 2}})
    session = workload(plan).session(plan.populations[0], 0)
    gaps = [session.gap_before(turn) for turn in range(2, 401)]
    assert session.gap_before(1) == 0
    assert statistics.median(gaps) == pytest.approx(2.0, rel=0.15)
    assert max(gaps) == 9.0
    assert workload(plan).session(plan.populations[1], 0).gap_before(2) == 0


def test_subagents_share_the_layers_and_have_their_own_words() -> None:
    """At their turn only; named after their parent, whose history they do not touch."""
    plan = scenario(RICH | {"turns": {"least": 3, "most": 3}})
    parent = workload(plan).session(plan.populations[0], 7)
    opening = parent.ask(1).messages
    assert parent.subagents(1) == ()
    assert parent.subagents(3) == ()
    children = parent.subagents(2)
    assert [child.id for child in children] == ["p0-7/1", "p0-7/2"]
    assert {(child.population, child.tenant, child.turns) for child in children} == {("p0", "default", 2)}
    firsts = [child.ask(1).messages for child in children]
    assert all(first[0] == opening[0] for first in firsts)
    assert len({first[1]["content"] for first in [*firsts, opening]}) == 3
    assert all(child.subagents(2) == () for child in children)
    parent.answered(1, "yes")
    assert len(parent.ask(2).messages) == 4


def test_subagents_work_in_their_parents_repository() -> None:
    """In any group of the parent."""
    plan = scenario(RICH | {"turns": {"least": 2, "most": 2}})
    run = workload(plan)
    systems = set()
    for number in range(40):
        parent = run.session(plan.populations[0], number)
        system = parent.ask(1).messages[0]
        assert all(child.ask(1).messages[0] == system for child in parent.subagents(2))
        systems.add(system["content"])
    assert len(systems) == 3


def test_populations_have_private_words_of_their_own() -> None:
    """Sessions of one number in two populations share only the layers."""
    plan = scenario(RICH, RICH)
    run = workload(plan)
    mine, theirs = (run.session(population, 0).ask(1).messages[1] for population in plan.populations)
    assert mine["content"].split()[:3] != theirs["content"].split()[:3]


def test_mixed_sampling_uses_every_field_and_keeps_its_bounds() -> None:
    """One mix a session, for all its turns; logprobs and stop strings only on request."""

    def fields(population: dict[str, Any]) -> list[dict[str, Any]]:
        plan = scenario({"sampling": "mixed", "turns": {"least": 2, "most": 2}} | population)
        run = workload(plan)
        mixes = []
        for number in range(60):
            session = run.session(plan.populations[0], number)
            mixes.append(dict(session.ask(1).sampling))
            assert session.ask(2).sampling == mixes[-1]
        return mixes

    plain, free, logs = fields({}), fields({"output": {"exact": False}}), fields({"logprobs": True})
    always = {
        "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
        "repetition_penalty",
    }  # fmt: skip
    assert set().union(*plain) == always
    assert set().union(*free) == always | {"stop"}
    assert set().union(*logs) == always | {"logprobs", "top_logprobs"}
    assert all(0 <= mix["temperature"] <= 1.5 for mix in plain)
    assert all(mix["stop"] and all(mix["stop"]) for mix in free if "stop" in mix)
    assert len({str(mix) for mix in plain}) == 60


def test_greedy_is_temperature_zero() -> None:
    """And nothing else."""
    plan = scenario({})
    assert workload(plan).session(plan.populations[0], 0).ask(1).sampling == {"temperature": 0.0}


def test_a_share_of_the_requests_hangs_up() -> None:
    """After one of the deltas or while waiting, never both; and slow readers read slowly."""
    ways = {"share": 0.6, "after_deltas": [1, 8], "while_waiting_seconds": [0.5]}
    plan = scenario({"hang_up": ways, "read_bytes_per_second": 50.0})
    run = workload(plan)
    wishes = [run.session(plan.populations[0], number).ask(1) for number in range(600)]
    seen = [(wish.hang_up_after_deltas, wish.hang_up_after_seconds) for wish in wishes]
    assert set(seen) == {(None, None), (1, None), (8, None), (None, 0.5)}
    assert seen.count((None, None)) == pytest.approx(240, rel=0.15)
    assert seen.count((None, 0.5)) == pytest.approx(120, rel=0.25)
    assert {wish.read_bytes_per_second for wish in wishes} == {50.0}


def test_turns_are_asked_in_order() -> None:
    """A driver that mixes them up has a bug."""
    plan = scenario({"turns": {"least": 3, "most": 3}})
    session = workload(plan).session(plan.populations[0], 0)
    with pytest.raises(AssertionError, match="in order"):
        session.ask(2)
    session.ask(1)
    with pytest.raises(AssertionError, match="only the last turn"):
        session.answered(2, "yes")
    session.answered(1, "yes")
    with pytest.raises(AssertionError, match="one answer"):
        session.answered(1, "again")


def test_a_trace_is_as_many_sessions_as_the_run_may_ask() -> None:
    """Fresh runs differ in their first words; sessions of one run share what they shared in the recording."""
    plan = load("replay-openai")
    (_, alone), (start, first), *others = workload(plan, "a").trace()
    assert (start, first.turns, len(others)) == (0.0, 3, 2)
    assert (first.population, first.tenant, first.subagents(1)) == ("replay", "default", ())
    one, two, other = first.ask(1), others[0][1].ask(1), workload(plan, "b").trace()[1][1].ask(1)
    assert one.messages[0] == two.messages[0]
    assert one.messages[0]["content"].split()[:3] != other.messages[0]["content"].split()[:3]
    assert two.reusable_share > 0.5
    first.answered(1, "something else than was recorded")
    assert first.gap_before(2) == 3.5
    recorded = first.ask(2)
    assert recorded.messages[:2] == one.messages
    assert recorded.messages[2]["content"].startswith("I will look at the routes")
    assert alone.ask(1).messages[0]["content"].endswith("What is a penstock?")
    few = plan.model_copy(update={"bounds": plan.bounds.model_copy(update={"requests": 2})})
    assert len(workload(few).trace()) == 2
    stale = workload(plan.model_copy(update={"fresh": False})).trace()
    assert stale[0][1].ask(1).messages == ({"role": "user", "content": "What is a penstock?"},)


def test_a_conversation_replayed_holds_the_answers_of_today() -> None:
    """ShareGPT's human turns, with the target's real answers between them."""
    (_, session), *_ = workload(load("replay-sharegpt")).trace()
    first = session.ask(1)
    session.answered(1, "today's answer")
    second = session.ask(2)
    assert second.messages[: len(first.messages)] == first.messages
    assert second.messages[len(first.messages)] == {"role": "assistant", "content": "today's answer"}
    assert (second.exact, second.sampling) == (True, {"temperature": 0.0})


RECALLING: dict[str, Any] = RICH | {
    "prompt": {"shared_tokens": 400, "group_tokens": 200, "groups": 3, "private_tokens": 80},
    "turns": {"least": 4, "most": 4, "growth_tokens": 70},
    "recall": True,
}


def stated(one: Ask) -> dict[str, str]:
    """Return the stated facts of a prompt: the code of each thing."""
    text = " ".join(message["content"] for message in one.messages)
    found = re.findall(r"The code of (\w+ \d+) is (\w\d\w-\d)\.", text)
    assert len({thing for thing, _ in found}) == len(found), "a thing is spoken of twice"
    return dict(found)


def test_what_is_to_be_recalled_is_in_the_prompt_and_asked_for_at_its_end() -> None:
    """At each turn, including the subagents', from any layer; and the answer may end by itself."""
    plan = scenario(RECALLING)
    layers = set()
    for number in range(12):
        for _, one in asks(workload(plan).session(plan.populations[0], number)):
            question = re.search(r" What is the code of ((\w+) \d+)\?$", one.messages[-1]["content"])
            assert question is not None
            assert stated(one)[question[1]] == one.expected
            assert not one.exact
            layers.add(question[2])
    assert layers == {"pump", "drone", "agent", "ticket"}


def test_facts_leave_shared_layers_shared_and_sessions_apart() -> None:
    """The common layers are the same to the byte; the private codes are not."""
    plan = scenario(RECALLING | {"prompt": RECALLING["prompt"] | {"groups": 1}})
    one, other = (asks(workload(plan).session(plan.populations[0], number))[0][1] for number in (0, 1))
    assert one.messages[0] == other.messages[0]
    apart = stated(one).items() - stated(other).items()
    assert {thing.split()[0] for thing, _ in apart} == {"agent"}
    again = asks(workload(plan, "another salt").session(plan.populations[0], 0))[0][1]
    assert again.expected != one.expected


def test_without_recall_no_right_answer_is_known() -> None:
    """And no fact is in the prompt."""
    plan = scenario(RICH)
    for _, one in asks(workload(plan).session(plan.populations[0], 0)):
        assert one.expected is None
        assert stated(one) == {}
