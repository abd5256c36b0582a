"""Who joins with the next step, and who waits for what another is just computing."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.backend import Restorable
from scheduler.engine.planner import Keep, Plan, plan
from scheduler.engine.sequence import Sequence
from tests.contracts.journal import prompt_of, request

TRUNK = prompt_of(100, 1)


def _behind_trunk(request_id: int, shared: int = 100, own: int = 30) -> Sequence:
    return Sequence.of(request(request_id, TRUNK[:shared] + [400 + request_id] * own))


def _plan(
    waiting: list[Sequence],
    running: list[Sequence] | None = None,
    free: int = 8,
    restorable: Restorable = "anywhere",
    known: int = 0,
) -> Plan:
    return plan(waiting, running or [], free, restorable, lambda sequence: known)


def _ids(todo: Plan) -> list[int]:
    return [sequence.request_id for sequence in todo.admit]


@settings(derandomize=True, deadline=None)
@given(
    ids=st.lists(st.integers(0, 99), unique=True, max_size=40),
    free=st.integers(-2, 40),
    restorable=st.sampled_from(["anywhere", "at_stops", "never"]),
)
def test_admits_as_many_as_fit_in_order_of_arrival(ids: list[int], free: int, restorable: Restorable) -> None:
    """min(waiting, free) requests that share nothing, the oldest first; none where no slot is free."""
    waiting = [Sequence.of(request(request_id, prompt_of(20, request_id))) for request_id in ids]
    assert _ids(_plan(waiting, free=free, restorable=restorable)) == ids[: min(len(ids), max(0, free))]


def test_one_leads_and_the_others_follow() -> None:
    """Of a burst behind one new prefix, the first computes it; no other joins before it is there."""
    waiting = [_behind_trunk(number) for number in range(5)]
    assert _ids(_plan(waiting)) == [0]
    leader, followers = waiting[0], waiting[1:]
    leader.prefilled_tokens = 99
    assert _plan(followers, [leader]) == Plan((), ())
    leader.prefilled_tokens = 100
    todo = _plan(followers, [leader])
    assert todo.keep == (Keep(0, 100),)
    assert _ids(todo) == [1, 2, 3, 4]


def test_a_leader_that_has_gone_is_followed_by_another() -> None:
    """The plan is made anew: the next in line leads."""
    assert _ids(_plan([_behind_trunk(number) for number in range(1, 5)])) == [1]


def test_followers_have_leaders_of_their_own_deeper_down() -> None:
    """Eight agents behind one repository behind one system prompt: each part is computed once."""
    repository = prompt_of(60, 2)
    deep = [Sequence.of(request(n, TRUNK + repository + [400 + n] * 20)) for n in range(1, 4)]
    leader = _behind_trunk(0)
    leader.prefilled_tokens = 110
    todo = _plan([*deep, _behind_trunk(9)], [leader])
    assert _ids(todo) == [1, 9]
    deep[0].prefilled_tokens = 160
    assert _plan(deep[1:], [leader, deep[0]]).keep == (Keep(1, 160),)


def test_nobody_waits_for_what_is_kept_already() -> None:
    """Followers are followers only of what the cache does not have."""
    assert _ids(_plan([_behind_trunk(number) for number in range(4)], known=100)) == [0, 1, 2, 3]


def test_nobody_waits_for_a_templates_first_tokens() -> None:
    """All prompts begin with a few tokens of their template; a step's wait would save nothing."""
    assert _ids(_plan([_behind_trunk(number, shared=15) for number in range(4)])) == [0, 1, 2, 3]
    assert _ids(_plan([_behind_trunk(number, shared=16) for number in range(4)])) == [0]


def test_nobody_waits_where_nothing_is_kept() -> None:
    """Without a prefix cache there is nothing to follow."""
    assert _ids(_plan([_behind_trunk(number) for number in range(4)], restorable="never")) == [0, 1, 2, 3]


def test_another_salt_is_another_world() -> None:
    """Tenants that do not share do not wait for each other either."""
    waiting = [_behind_trunk(number) for number in range(3)]
    waiting[1].submit = msgspec.structs.replace(waiting[1].submit, salt="other")
    assert _ids(_plan(waiting)) == [0, 1]


def test_who_shares_nothing_passes_those_who_wait() -> None:
    """A held follower does not hold up the line behind it."""
    other = Sequence.of(request(7, prompt_of(50, 7)))
    assert _ids(_plan([_behind_trunk(0), _behind_trunk(1), other], free=2)) == [0, 7]


def test_a_decoding_row_is_no_leader() -> None:
    """Its prompt was kept when it ended; where it was not, nobody waits for it."""
    leader = _behind_trunk(0)
    leader.prefilled_tokens = len(leader.tokens)
    assert _ids(_plan([_behind_trunk(1)], [leader])) == [1]


def test_where_layers_keep_states_a_leader_pauses_for_its_followers() -> None:
    """It stops where they part, they wait for that stop, and for no stop beyond it."""
    waiting = [_behind_trunk(number) for number in range(4)]
    todo = _plan(waiting, restorable="at_stops")
    assert _ids(todo) == [0]
    leader = waiting[0]
    assert leader.stops == (100,)
    leader.prefilled_tokens = 64
    assert _plan(waiting[1:], [leader], restorable="at_stops") == Plan((), ())
    leader.prefilled_tokens = 100
    todo = plan(waiting[1:], [leader], 8, "at_stops", lambda sequence: 100)
    assert (todo.keep, _ids(todo)) == ((), [1, 2, 3])


def test_where_the_leader_does_not_pause_nobody_waits() -> None:
    """Who comes after the leader has been given its stops has nothing to wait for."""
    leader = _behind_trunk(0)
    leader.stops = (120,)
    assert _ids(_plan([_behind_trunk(1)], [leader], restorable="at_stops")) == [1]
