"""What clients and operators asked to keep: until when, and how much of it."""

from __future__ import annotations

from math import inf

from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.retention import Retention
from scheduler.shared.pins import MOST_PINS, pin_name
from scheduler.shared.reports import PinReport
from tests.scheduler.engine.prefix.cached_prompts import TOKEN_BYTES, keep, words
from tests.scheduler.engine.prefix.test_radix_tree import RUN_BYTES, Run, State, at


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

    def held_tokens(self) -> float:
        return self.cache.statistics().held_bytes / TOKEN_BYTES


def test_what_is_held_outlives_everything_until_its_time() -> None:
    """Newer prompts, used twice, go before it; when its time is over it is like any other."""
    timed = Timed(400)
    keep(timed.cache, words(0, 100))
    assert timed.cache.hold(words(0, 100), "", 300.0)
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
    assert timed.cache.check_integrity() == []


def test_more_than_a_share_is_not_held() -> None:
    """Refused and counted, with nothing changed; what the paths have in common counts once."""
    timed = Timed(400)
    keep(timed.cache, words(0, 100) + words(1000, 50))
    keep(timed.cache, words(0, 100) + words(2000, 50))
    keep(timed.cache, words(5000, 50))
    assert timed.cache.hold(words(0, 100) + words(1000, 50), "", 10.0)
    assert timed.cache.hold(words(0, 100) + words(2000, 50), "", 10.0)
    assert not timed.cache.hold(words(5000, 50), "", 10.0)
    assert (timed.held_tokens(), timed.cache.statistics().refused_holds) == (200, 1)
    assert timed.cache.hold(words(0, 100) + words(1000, 50), "", 99.0), "again, for longer"
    assert timed.held_tokens() == 200


def test_only_what_was_computed_up_to_there_is_held() -> None:
    """An edge is cut where the hold ends, and a later cut leaves both halves held."""
    timed = Timed(400)
    keep(timed.cache, words(0, 150))
    assert timed.cache.hold(words(0, 100), "", 10.0)
    assert timed.held_tokens() == 100
    timed.cache.release(timed.cache.match_and_lease(at(words(0, 40) + words(9000, 9))))
    assert timed.held_tokens() == 100
    timed.cache.set_running_bytes(300 * TOKEN_BYTES)
    assert timed.cache.find(at(words(0, 151))).length == 100
    timed.now = 11.0
    timed.cache.evict(1)
    assert timed.held_tokens() == 0


def test_running_rows_take_what_is_held_in_the_end() -> None:
    """A hold is a wish: rows need their memory, and DELETE /v1/cache takes all."""
    timed = Timed(400)
    keep(timed.cache, words(0, 100))
    timed.cache.hold(words(0, 100), "", 1000.0)
    timed.cache.set_running_bytes(350 * TOKEN_BYTES)
    assert timed.cache.find(at(words(0, 101))).length == 0
    assert timed.held_tokens() == 0
    assert timed.cache.check_integrity() == []


def test_nothing_is_held_where_nothing_can_be_restored() -> None:
    """A model with layers that cannot be cut: up to the last snapshot, or not at all."""
    timed = Timed(400, needs_snapshot=True)
    keep(timed.cache, words(0, 100))
    assert not timed.cache.hold(words(0, 100), "", 10.0)
    timed.cache.attach(at(words(0, 60)), State((), nbytes=0))
    assert timed.cache.hold(words(0, 100), "", 10.0)
    assert timed.held_tokens() == 60
    assert not timed.cache.hold(words(7000, 10), "", 10.0)


def test_a_pin_has_no_end_but_its_release() -> None:
    """It is listed by its name; what another pin begins with stays held when it is released."""
    timed = Timed(400)
    common, one, other = words(0, 60), words(1000, 40), words(2000, 40)
    for branch in (one, other):
        keep(timed.cache, common + branch)
        assert timed.cache.hold(common + branch, "", inf)
    name = pin_name(common + one, "")
    assert timed.cache.statistics().pins[0] == PinReport(name, 100, 100)
    timed.now = 1e9
    for start in range(10_000, 20_000, 100):
        keep(timed.cache, words(start, 100))
    assert timed.cache.find(at(common + one + words(9, 1))).length == 100
    assert not timed.cache.unpin("unknown")
    assert timed.cache.unpin(name)
    assert not timed.cache.unpin(name)
    assert (timed.held_tokens(), len(timed.cache.statistics().pins)) == (100, 1)
    for start in range(20_000, 30_000, 100):
        keep(timed.cache, words(start, 100))
    assert timed.cache.find(at(common + one + words(9, 1))).length == 60
    assert timed.cache.find(at(common + other + words(9, 1))).length == 100
    assert timed.cache.check_integrity() == []


def test_rows_take_what_is_pinned_and_the_list_says_so() -> None:
    """A pin whose tokens are gone is still listed; clearing the cache ends all pins."""
    timed = Timed(400)
    keep(timed.cache, words(0, 100))
    timed.cache.hold(words(0, 100), "", inf)
    timed.cache.set_running_bytes(400 * TOKEN_BYTES)
    assert [pin.cached_tokens for pin in timed.cache.statistics().pins] == [0]
    timed.cache.clear()
    assert timed.cache.statistics().pins == []
    assert timed.held_tokens() == 0


def test_pins_are_bounded() -> None:
    """In number, too: each is listed."""
    timed = Timed(100_000, share=1.0)
    for number in range(MOST_PINS + 1):
        keep(timed.cache, words(100 * number, 2))
        assert bool(timed.cache.hold(words(100 * number, 2), "", inf)) == (number < MOST_PINS)
    assert timed.cache.statistics().refused_holds == 1


def test_a_pin_is_of_the_whole_prompt_or_refused() -> None:
    """But for its last token, which no hit has; a time may hold what there is. Refused, nothing is held."""
    timed = Timed(400)
    keep(timed.cache, words(0, 98))
    refused = timed.cache.hold(words(0, 100), "", inf)
    assert refused.refusal == "only 98 of its 100 tokens are cached: the prefix cache has no room for more"
    statistics = timed.cache.statistics()
    assert (timed.held_tokens(), statistics.pins, statistics.refused_holds) == (0, [], 1)
    assert timed.cache.hold(words(0, 99), "", inf)
    assert timed.cache.hold(words(0, 100), "", 10.0)


def test_a_refusal_says_what_there_is_no_room_for() -> None:
    """In bytes of this prompt, of what is held and of what may be; a prompt without a cached token is
    another case."""
    timed = Timed(400)
    keep(timed.cache, words(0, 150))
    keep(timed.cache, words(1000, 100))
    assert timed.cache.hold(words(0, 150), "", inf).refusal == ""
    refused = timed.cache.hold(words(1000, 100), "", inf).refusal
    for figure in (100, 150, 200):
        assert f"{figure * TOKEN_BYTES}" in refused
    assert timed.cache.hold(words(7000, 10), "", inf).refusal.startswith("nothing of it is cached")
    assert [pin.tokens for pin in timed.cache.statistics().pins] == [150]


def test_what_is_pinned_already_may_be_pinned_again() -> None:
    """Also where no further prompt may be."""
    timed = Timed(100_000, share=1.0)
    for number in range(MOST_PINS):
        keep(timed.cache, words(100 * number, 2))
        timed.cache.hold(words(100 * number, 2), "", inf)
    assert timed.cache.hold(words(0, 2), "", inf)
    keep(timed.cache, words(10**7, 2))
    assert f"{MOST_PINS} prompts are pinned already" in timed.cache.hold(words(10**7, 2), "", inf).refusal
