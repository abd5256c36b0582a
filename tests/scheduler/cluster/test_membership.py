"""Which engines there should be, given the nodes that live and the engines that there are."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.cluster.agent_messages import Node
from scheduler.cluster.membership import (
    RETRY_LIMIT_SECONDS,
    RETRY_SECONDS,
    Changes,
    Seat,
    Seated,
    changes,
    retry_seconds,
)

MOST = 8
MACHINES = ("mac-1", "mac-2", "mac-3")


def node(machine: str, life: int = 1, places: int = 1) -> Node:
    """`life`: each time that a node joins, Ray gives it another id."""
    return Node(f"{machine}/{life}", machine, "10.0.0.1", "10.0.0.1", places)


def seated(name: str, where: Node, unit: int = 0, *, linked: bool = True) -> Seated:
    return Seated(name, Seat(where.id, where.machine, unit, where.places), linked)


def follow(nodes: list[Node], members: list[Seated], now: float = 0.0) -> Changes:
    return changes(nodes, members, now, MOST)


def test_each_place_of_a_node_gets_an_engine() -> None:
    found = follow([node("mac-1"), node("mac-2", places=2)], [])
    assert [(seat.machine, seat.unit, seat.of) for seat in found.add] == [
        ("mac-1", 0, 1),
        ("mac-2", 0, 2),
        ("mac-2", 1, 2),
    ]


def test_an_engine_whose_node_is_gone_stays_while_its_link_lives() -> None:
    """Ray may have lost what still answers."""
    assert not follow([], [seated("0", node("mac-1"))])
    assert follow([], [seated("0", node("mac-1"), linked=False)]).remove == ("0",)


def test_a_node_that_joins_again_has_its_engine_already() -> None:
    """No second one is started there, which would find the device in use."""
    found = follow([node("mac-1", 2)], [seated("0", node("mac-1", 1))])
    assert found == Changes(move=(("0", Seat("mac-1/2", "mac-1", 0)),))


def test_an_engine_that_runs_gets_its_machines_place_before_one_that_does_not() -> None:
    dead, alive = seated("0", node("mac-1", 1), linked=False), seated("1", node("mac-1", 2))
    found = follow([node("mac-1", 3)], [dead, alive])
    assert [name for name, _ in found.move] == ["1"]
    assert found.remove == ("0",)


def test_an_engine_that_could_not_be_started_is_tried_again() -> None:
    """After a while, and at once when its node joins again."""
    failed = replace(seated("0", node("mac-1"), linked=False), retry_at=160.0)
    assert not follow([node("mac-1")], [failed], 159.0)
    assert follow([node("mac-1")], [failed], 160.0).retry == ("0",)
    assert follow([node("mac-1", 2)], [failed], 101.0).retry == ("0",)


def test_attempts_become_rare_and_do_not_end() -> None:
    """A model that is refused may take minutes to load."""
    waits = [retry_seconds(failures) for failures in range(1, 100)]
    assert waits[:3] == [RETRY_SECONDS, 2 * RETRY_SECONDS, 4 * RETRY_SECONDS]
    assert set(waits[6:]) == {RETRY_LIMIT_SECONDS}


def test_two_nodes_of_one_name_differ_by_their_ids() -> None:
    """As on one machine, where nobody names them."""
    twins = [node("mac-1", 1), node("mac-1", 2)]
    found = follow(twins, [seated("0", twins[1])])
    assert [seat.node_id for seat in found.add] == ["mac-1/1"]
    assert not found.move


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Node], list[Seated], float]:
    def nodes(life: int) -> list[Node]:
        machines = draw(st.lists(st.sampled_from(MACHINES), unique=True))
        return [node(machine, life, draw(st.integers(1, 3))) for machine in machines]

    alive = nodes(2)
    offered = [(where, unit) for where in (*nodes(1), *alive) for unit in range(where.places)]
    taken = draw(st.lists(st.sampled_from(offered), unique=True, max_size=MOST)) if offered else []
    members = []
    for number, (where, unit) in enumerate(taken):
        linked = draw(st.booleans())
        retry_at = None if linked else draw(st.none() | st.floats(50, 250))
        members.append(replace(seated(str(number), where, unit, linked=linked), retry_at=retry_at))
    return alive, members, draw(st.floats(100, 200))


@given(clusters())
@settings(derandomize=True)
def test_after_the_changes_nothing_is_left_to_do(
    drawn: tuple[list[Node], list[Seated], float],
) -> None:
    """Every place has one engine, up to the most that there may be; no engine that runs is stopped."""
    nodes, members, now = drawn
    found = changes(nodes, members, now, MOST)
    moved = dict(found.move)
    after = [
        replace(
            one,
            seat=moved.get(one.name, one.seat),
            retry_at=None if one.name in found.retry else one.retry_at,
        )
        for one in members
        if one.name not in found.remove
    ]
    after += [Seated(f"new {number}", seat, False) for number, seat in enumerate(found.add)]
    assert {one.name for one in members if one.linked} <= {one.name for one in after}
    assert len(after) <= MOST
    assert len({one.seat for one in after}) == len(after)
    again = changes(nodes, after, now, MOST)
    assert not again
    places = {Seat(one.id, one.machine, unit, one.places) for one in nodes for unit in range(one.places)}
    assert places <= {one.seat for one in after} or len(after) == MOST
