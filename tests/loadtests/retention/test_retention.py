"""What the server's rule of eviction prefills again, against LRU and the segmented rule that it replaced."""

from __future__ import annotations

from itertools import pairwise

import pytest

from loadtests.retention.commands import complaints
from loadtests.retention.replay import RULES, LeastRecentlyUsed, run, working_tokens
from loadtests.retention.traces import POPULATIONS, trace


@pytest.mark.parametrize("name", POPULATIONS)
def test_the_rule_is_never_much_worse_and_better_with_gaps(name: str) -> None:
    """With a quarter of the memory; on traces with tool gaps it prefills at most nine tenths of either's."""
    assert list(complaints(run(name, seconds=400.0, share=0.25, seed=1))) == []


def test_with_room_for_all_nothing_is_prefilled_again() -> None:
    """Whatever the rule: it decides only what goes."""
    assert {one.again for one in run("short", seconds=120.0, share=20.0, seed=1)} == {0}


def test_traces_are_the_same_each_time() -> None:
    """And another seed gives another one."""
    assert trace("mixed", 60.0, 3) == trace("mixed", 60.0, 3) != trace("mixed", 60.0, 4)


def test_a_session_only_grows() -> None:
    """Each prompt continues what the last turn left, after its answer; its room is counted at its largest."""
    turns = trace("farm", 200.0)
    for stream in {turn.stream for turn in turns}:
        own = [turn for turn in turns if turn.stream == stream]
        for before, after in pairwise(own):
            assert after.at > before.ends
            assert after.own_tokens > before.own_tokens + before.answer_tokens
            assert not before.last
    assert working_tokens(turns) >= max(turn.own_tokens + turn.answer_tokens for turn in turns)


def test_the_servers_rule_is_the_last() -> None:
    """The verdict is about it."""
    assert list(RULES)[-1] == "by return"
    assert isinstance(RULES["lru"](), LeastRecentlyUsed)
