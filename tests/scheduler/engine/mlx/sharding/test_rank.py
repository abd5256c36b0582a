"""What ranks agree on before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.kept_verdicts import StoredVerdict
from scheduler.engine.mlx.load_check import Verdict
from scheduler.engine.mlx.sharding.rank import Rank, RanksUnusable
from scheduler.shared.messages import RankGroup

_GROUP = RankGroup(3, "ring", ("a:1", "b:1", "c:1"))
_LIMIT = MemoryLimit(8 << 30, weights_bytes=2 << 30, pool_bytes=1 << 28)
_FACTS = {"device": "cpu", "model": "qwen3 12ab"}


def _rank(number: int, others: Sequence[bytes | None]) -> Rank:
    """Return a rank that receives these of the others; in place of None, what it sends itself."""
    return Rank(number, _GROUP, lambda mine: [mine if other is None else other for other in others])


def _said(number: int, value: object) -> bytes:
    """What a rank tells the others of this value."""
    heard: list[bytes] = []

    def exchange(mine: bytes) -> list[bytes]:
        heard.append(mine)
        return [mine] * 3

    rank = Rank(number, _GROUP, exchange)
    match value:
        case MemoryLimit():
            rank.least(value)
        case dict():
            rank.compare(value)
        case _:
            rank.decided(value, type(value))
    return heard[0]


def test_the_rank_with_the_least_room_for_keys_and_values_sets_the_limit_of_all() -> None:
    """Its whole limit, for budgets are computed from all of its fields."""
    small = replace(_LIMIT, limit_bytes=4 << 30)
    said = [_said(0, _LIMIT), _said(1, small), None]
    assert _rank(2, said).least(replace(_LIMIT, limit_bytes=16 << 30)) == small


def test_more_weights_on_one_rank_bound_the_budget_of_all() -> None:
    heavy = replace(_LIMIT, weights_bytes=6 << 30)
    assert _rank(0, [None, _said(1, heavy), _said(2, _LIMIT)]).least(_LIMIT) == heavy


def test_rank_0_decides() -> None:
    """A verdict that another rank found, or has kept, does not count."""
    first = StoredVerdict(Verdict(Batching(in_place=False), ("why",)), 512)
    assert _rank(1, [_said(0, first), None, None]).decided(None, StoredVerdict | None) == first
    assert (
        _rank(1, [_said(0, first), None, None]).decided(StoredVerdict(Verdict(Batching())), StoredVerdict)
        == first
    )


def test_equal_ranks_go_on() -> None:
    _rank(1, [None, None, None]).compare(_FACTS)


@pytest.mark.parametrize("name", ["device", "model"])
def test_a_rank_that_differs_is_named_on_every_rank(name: str) -> None:
    """Also on those that are alike: all of them must end."""
    other = _FACTS | {name: "another"}
    said = [_said(0, _FACTS), _said(1, _FACTS), _said(2, other)]
    for number, mine in enumerate((_FACTS, _FACTS, other)):
        heard = [*said[:number], None, *said[number + 1 :]]
        with pytest.raises(RanksUnusable, match=f"rank 2 differs: its {name} is another"):
            _rank(number, heard).compare(mine)


def test_ranks_on_one_machine_share_its_memory() -> None:
    assert _rank(0, []).on_this_machine == 3
    apart = RankGroup(3, "ring", _GROUP.hosts, control="a:2")
    assert Rank(0, apart, lambda mine: []).on_this_machine == 1
