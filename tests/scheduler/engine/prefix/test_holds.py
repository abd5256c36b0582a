"""What clients and operators asked to keep: until when, and how much of it."""

from __future__ import annotations

from array import array

from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.retention import Retention
from scheduler.shared.adapter_files import salted
from tests.scheduler.engine.prefix.cached_prompts import (
    RUN_BYTES,
    TOKEN_BYTES,
    Run,
    State,
    at,
    cut_of,
    keep,
    words,
)
from tests.scheduler.engine.prefix.integrity import check_integrity


class Timed:
    """A cache whose clock stands still until a test moves it."""

    def __init__(self, tokens: int, share: float = 0.5, needs_snapshot: bool = False) -> None:
        self.now = 0.0
        self.cache: PrefixCache[Run, State] = PrefixCache(
            tokens * TOKEN_BYTES,
            RUN_BYTES,
            needs_snapshot,
            lambda: self.now,
            Retention(held_share=share),
        )

    def keep(self, tokens: array[int], salt: str) -> None:
        self.cache.insert(at(tokens, salt), cut_of(tokens))

    def held_tokens(self) -> float:
        return self.cache.statistics().held_bytes / TOKEN_BYTES


def test_what_is_held_outlives_everything_until_its_time() -> None:
    """Newer prompts, used twice, go before it; when its time is over it is like any other. Who asks for less
    takes nothing of it."""
    timed = Timed(400)
    keep(timed.cache, words(0, 100))
    assert not timed.cache.hold(words(0, 100), "", 300.0)
    assert not timed.cache.hold(words(0, 100), "", 10.0)
    for start in range(1000, 20_000, 100):
        timed.now += 1.0
        keep(timed.cache, words(start, 100))
    assert timed.cache.find(at(words(0, 101))).length == 100
    assert timed.held_tokens() == 100
    timed.now = 301.0
    for start in range(30_000, 40_000, 100):
        timed.now += 1.0
        keep(timed.cache, words(start, 100))
    assert timed.cache.find(at(words(0, 101))).length == 0
    assert timed.held_tokens() == 0
    check_integrity(timed.cache)


def test_more_than_a_share_is_not_held() -> None:
    """Refused and counted, with nothing changed; what the paths have in common counts once."""
    timed = Timed(400)
    keep(timed.cache, words(0, 100) + words(1000, 50))
    keep(timed.cache, words(0, 100) + words(2000, 50))
    keep(timed.cache, words(5000, 50))
    assert not timed.cache.hold(words(0, 100) + words(1000, 50), "", 10.0)
    assert not timed.cache.hold(words(0, 100) + words(2000, 50), "", 10.0)
    assert timed.cache.hold(words(5000, 50), "", 10.0)
    assert (timed.held_tokens(), timed.cache.statistics().refused_holds) == (200, 1)
    assert not timed.cache.hold(words(0, 100) + words(1000, 50), "", 99.0), "again, for longer"
    assert timed.held_tokens() == 200


def test_who_holds_most_yields_to_a_tenant_that_holds_less() -> None:
    """What ends first goes first, whatever the client's own salt or adapter; nobody yields to who would then
    hold more."""
    timed = Timed(400)
    mine, others = "a\0x", [salted("adapter", "b\0y"), "b\0z", "b\0"]
    for number, salt in enumerate(others):
        timed.keep(words(1000 * number, 60), salt)
        assert not timed.cache.hold(words(1000 * number, 60), salt, 10.0 * (3 - number))
    timed.keep(words(0, 50), mine)
    timed.keep(words(5000, 70), mine)
    assert not timed.cache.hold(words(0, 50), mine, 9.0)
    assert timed.held_tokens() == 170, "the one of 10 seconds ended"
    assert timed.cache.hold(words(5000, 70), mine, 99.0), "the other would hold less"
    assert timed.held_tokens() == 170
    timed.keep(words(0, 40), "c\0")
    assert not timed.cache.hold(words(0, 40), "c\0", 9.0)
    assert timed.held_tokens() == 150, "the one of 20 seconds ended"
    check_integrity(timed.cache)


def test_only_what_was_computed_up_to_there_is_held() -> None:
    """An edge is cut where the hold ends, and a later cut leaves both halves held."""
    timed = Timed(400)
    keep(timed.cache, words(0, 150))
    assert not timed.cache.hold(words(0, 100), "", 10.0)
    assert timed.held_tokens() == 100
    timed.cache.release(timed.cache.match_and_lease(at(words(0, 40) + words(9000, 9))))
    assert timed.held_tokens() == 100
    timed.cache.set_running_bytes(300 * TOKEN_BYTES)
    assert timed.cache.find(at(words(0, 151))).length == 100
    timed.now = 11.0
    timed.cache.evict(1)
    assert timed.held_tokens() == 0


def test_nothing_is_held_where_nothing_can_be_restored() -> None:
    """A model with layers that cannot be cut: up to the last snapshot, or not at all."""
    timed = Timed(400, needs_snapshot=True)
    keep(timed.cache, words(0, 100))
    assert timed.cache.hold(words(0, 100), "", 10.0)
    timed.cache.attach(at(words(0, 60)), State((), nbytes=0))
    assert not timed.cache.hold(words(0, 100), "", 10.0)
    assert timed.held_tokens() == 60
    assert timed.cache.hold(words(7000, 10), "", 10.0)
