"""A conversation's turns go where its earlier turns were read."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from api.preparers.homes import _MOST_HEADS, Homes, heads_of

CHANCE = random.Random(1)


def some_bytes(length: int) -> bytes:
    return CHANCE.randbytes(length)


@given(st.integers(0, 50), st.sets(st.integers(0, 7), min_size=1), st.integers(0, 7))
def test_a_session_moves_only_when_its_process_ends(session: int, running: set[int], ended: int) -> None:
    homes, name = Homes(), f"agent {session}"
    home = homes.of_session("t", name, running)
    assert home in running
    if left := running - {ended}:
        moved = homes.of_session("t", name, left)
        assert moved == home or ended == home


def test_sessions_are_spread() -> None:
    homes = Homes()
    counts = [0] * 4
    for session in range(400):
        counts[homes.of_session("t", f"agent {session}", range(4))] += 1
    assert min(counts) > 60


@settings(deadline=None)
@given(st.integers(4096, 300_000), st.floats(1.0, 1.9))
def test_a_grown_body_is_known(length: int, growth: float) -> None:
    """Whatever stands at its end."""
    homes, body = Homes(), some_bytes(length)
    homes.note("t", heads_of(body + b"]}"), 3)
    grown = body + some_bytes(round(length * (growth - 1))) + b"}"
    assert homes.of_text("t", heads_of(grown), range(4)) == 3
    assert homes.of_text("another", heads_of(grown), range(4)) is None
    assert homes.of_text("t", heads_of(grown), (0, 1)) is None


def test_what_all_agents_begin_with_is_no_conversation() -> None:
    """A system prompt that is less than a quarter of a body."""
    homes, system = Homes(), some_bytes(20_000)
    homes.note("t", heads_of(system + some_bytes(80_000)), 1)
    assert homes.of_text("t", heads_of(system + some_bytes(80_000)), range(4)) is None


def test_short_bodies_are_not_known() -> None:
    assert heads_of(b"x" * 4095) == ()
    assert [length for length, _ in heads_of(b"x" * 20_000)] == [4096, 8192, 16384]


def test_the_oldest_are_forgotten() -> None:
    homes = Homes()
    for number in range(_MOST_HEADS // 2 + 1):
        homes.note("t", ((4096, number), (8192, number)), 0)
    assert homes.of_text("t", ((4096, 0), (8192, 0)), range(4)) is None
    assert homes.of_text("t", ((4096, 1), (8192, 1)), range(4)) == 0
