"""Which requests resume, which one is blamed, and when it is a crash loop: decisions on records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engines.poison import count_death, culprit_of, judge, takes_suspect
from scheduler.requests.record import StreamRecord
from scheduler.statistics import DeathCause
from tests.scheduler.requests.records import make_record

EVERYBODY = range(100)
"""Ids of all requests here: the engine was computing them."""


def on_board(number: int, tokens: int = 0) -> StreamRecord:
    """Return a request with `tokens` tokens from its current engine."""
    record = make_record(number, max_tokens=100)
    for token in range(tokens):
        record.count_token(65 + token, 0.0)
    return record


def after_death(*records: StreamRecord, limit: int = 2) -> StreamRecord | None:
    return culprit_of(count_death(records, EVERYBODY), limit)


def sent_again(record: StreamRecord) -> StreamRecord:
    record.resubmit_message()
    return record


def test_a_suspect_that_must_be_alone_resumes_where_it_would_be_the_only_culprit() -> None:
    """With a free slot, beside requests that are all trusted."""
    trusted = [on_board(number, tokens=4) for number in (1, 2)]
    assert takes_suspect([], 1, alone=True)
    assert takes_suspect(trusted, 3, alone=True)
    assert not takes_suspect(trusted, 2, alone=True), "no slot is free"
    after_death(*trusted)
    for record in trusted:
        sent_again(record)
    assert not takes_suspect(trusted, 8, alone=True), "they are not trusted yet"
    for record in trusted:
        for _ in range(4):
            record.count_token(65, 0.0)
    assert takes_suspect(trusted, 8, alone=True)
    assert not takes_suspect([*trusted, on_board(3, tokens=3)], 8, alone=True)


def test_any_other_suspect_resumes_beside_new_requests() -> None:
    """But not beside another suspect, nor beside resumed ones that would be suspects, too."""
    new, suspect, resumed = on_board(1), on_board(2), on_board(3, tokens=4)
    after_death(suspect, resumed)
    assert takes_suspect([new], 1, alone=False)
    sent_again(resumed)
    assert not takes_suspect([new, resumed], 8, alone=False)
    for _ in range(4):
        resumed.count_token(65, 0.0)
    assert takes_suspect([new, resumed], 8, alone=False)
    assert not takes_suspect([new, sent_again(suspect)], 8, alone=False), "one at a time"


def test_a_suspect_is_who_was_in_the_step() -> None:
    """What waited, or came meanwhile, had no part in it: it is as it was."""
    computed, waited, trusted = on_board(1), on_board(2), on_board(3, tokens=4)
    again = on_board(4)
    count_death([again], [4])
    assert count_death([computed, waited, trusted, again], [1, 3]) == [computed]
    assert [(one.suspect, one.deaths) for one in (computed, waited, trusted, again)] == [
        (True, 1),
        (False, 0),
        (False, 0),
        (True, 1),
    ]


def test_one_suspect_is_blamed_at_its_limit_and_two_never() -> None:
    """The count of a request that becomes trusted starts again at zero."""
    trusted, first, second = on_board(1, tokens=9), on_board(2), on_board(3)
    for _ in range(5):
        assert after_death(trusted, first, second) is None
        for record in (trusted, first, second):
            sent_again(record)
        for _ in range(4):
            trusted.count_token(65, 0.0)
    assert (trusted.deaths, first.deaths) == (0, 5)
    for _ in range(4):
        second.count_token(65, 0.0)
    assert after_death(trusted, first, second) is first
    assert (first.deaths, second.deaths) == (6, 0)


@given(st.integers(1, 5))
def test_alone_it_is_blamed_at_exactly_its_limit(limit: int) -> None:
    """Neither earlier nor later."""
    record = on_board(1)
    for death in range(1, limit + 1):
        assert (after_death(record, limit=limit) is record) == (death == limit)
        sent_again(record)


def test_a_spared_death_counts_for_nobody_but_leaves_the_suspicion() -> None:
    """The device timed out, and the next engine has smaller chunks: all on board resume as after any
    death, and none is nearer to its limit."""
    trusted, suspect = on_board(1, tokens=9), on_board(2)
    records = [trusted, suspect]
    for _ in range(5):
        assert culprit_of(died_of_timeout(*records), 1) is None
        assert [record.suspect for record in records] == [False, True]
        for record in records:
            sent_again(record)
        for _ in range(4):
            trusted.count_token(65, 0.0)
    assert (trusted.deaths, suspect.deaths) == (0, 0)
    assert culprit_of(count_death([suspect], EVERYBODY), 1) is suspect


def test_a_request_is_not_spared_for_ever() -> None:
    """Chunks climb back, so that without a bound one prompt could time out again and again."""
    record = on_board(1)
    deaths = 1
    while culprit_of(died_of_timeout(record), 2) is None:
        deaths += 1
        assert deaths < 20
        sent_again(record)
    assert deaths > 10


@pytest.mark.parametrize("cause", [DeathCause.KILLED, DeathCause.GPU_VICTIM])
def test_a_signal_from_outside_and_another_processs_gpu_fault_are_nobodys(cause: DeathCause) -> None:
    """Those on board are no suspects, but for who was one already; and a request that is hit again and again
    before it has got four tokens becomes one: some systems kill for memory without a word."""
    trusted, fresh, crashed = on_board(1, tokens=9), on_board(2), on_board(3)
    count_death([crashed], EVERYBODY)
    judged(cause, trusted, fresh, crashed)
    assert [(one.suspect, one.deaths) for one in (trusted, fresh, crashed)] == [
        (False, 0),
        (False, 0),
        (True, 1),
    ]
    kills = 1
    while not fresh.suspect:
        judged(cause, fresh)
        kills += 1
        assert kills < 10
    assert kills > 3
    assert not fresh.roams


@pytest.mark.parametrize("cause", DeathCause)
def test_a_suspect_goes_to_another_engine_once_and_only_after_a_crash(cause: DeathCause) -> None:
    """What was short of memory or of the device's time is to find that engine's lowered bounds; what hung
    would hang the next one for as long."""
    record = on_board(1)
    crash = cause in (DeathCause.CRASHED, DeathCause.FAULT, DeathCause.EXIT)
    judged(cause, record)
    assert record.roams == crash
    judged(cause, record)
    assert not record.roams


def died_of_timeout(*records: StreamRecord) -> list[StreamRecord]:
    return judged(DeathCause.GPU_TIMEOUT, *records)


def judged(cause: DeathCause, *records: StreamRecord) -> list[StreamRecord]:
    """Return the suspects of a death of this cause, after which chunks can get smaller."""
    suspects = count_death(records, EVERYBODY)
    judge(suspects, cause, smallest_chunk=False)
    return suspects
