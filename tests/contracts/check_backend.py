"""The contract of a back end, run by the scripted one's tests and by the real one's.

Each check takes a function that makes an empty back end, which prefills CHUNK tokens a step, and leaves the
back end as empty as it was. Prompts are token ids of both vocabularies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec
import pytest

from scheduler.engine.backend import Backend
from scheduler.engine.plan import StepPlan
from scheduler.engine.planning.prefill import Chunk
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.messages import MAX_TOP_LOGPROBS, LogprobsOut, Retired
from scheduler.shared.token_ids import compact
from tests.contracts.journal import (
    GREEDY,
    SEEDED,
    VOCABULARY,
    Course,
    Journal,
    alone,
    answers,
    kv_bytes,
    prompt_of,
    request,
)

CHUNK = 8
"""The prefill chunk of the back ends under test: prompts take a few steps."""

MAX_ROWS = 32
"""The maximum rows of the back ends under test."""

MakeBackend: TypeAlias = Callable[[], Backend]


def _tokens(courses: Mapping[int, Course]) -> dict[int, list[int]]:
    return {request_id: course.tokens for request_id, course in courses.items()}


def check_it_has_the_members_of_a_back_end(make: MakeBackend) -> None:
    """And no other public ones: nothing changes a model's state beside `execute`."""
    assert [name for name in dir(make()) if name[0] != "_"] == [
        name for name in dir(Backend) if name[0] != "_"
    ]


def check_every_row_ends_by_itself_once(make: MakeBackend) -> None:
    """Rows of every prompt length get exactly one Retired, after exactly max_tokens tokens."""
    submits = [request(length, prompt_of(length, 1), 1 + length % 7) for length in range(1, MAX_ROWS + 1)]
    for course in answers(make(), submits).values():
        assert len(course.tokens) == course.submit.max_tokens
        assert course.retired == Retired(course.submit.request_id, "length")


def check_prefill_goes_in_chunks(make: MakeBackend) -> None:
    """A step computes at most one chunk of a prompt; its last progress report is its whole length."""
    for length in (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 2, 5 * CHUNK):
        course = answers(make(), [request(1, prompt_of(length, 2), 1)])[1]
        steps = [b - a for a, b in zip([0, *course.prefilled], course.prefilled, strict=False)]
        assert sum(steps) == length
        assert max(steps) <= CHUNK


def check_decoding_goes_on_during_prefill(make: MakeBackend) -> None:
    """A decoding row gets a token in each step while another row's long prompt is prefilled."""
    journal = Journal(make())
    talker = journal.admit(request(1, prompt_of(3, 3), 50))
    journal.step_until(lambda: bool(talker.tokens))
    reader = journal.admit(request(2, prompt_of(6 * CHUNK, 3), 1))
    while not reader.tokens:
        before = len(talker.tokens)
        journal.step()
        assert len(talker.tokens) == before + 1
    assert len(reader.prefilled) >= 6
    journal.finish()


def check_a_stop_token_ends_the_row(make: MakeBackend) -> None:
    """The row ends with the first of its stop tokens, which is its last token, at every position; also if the
    length would have ended it there too. A neighbour's stop token has no effect."""
    backend = make()
    most = 6
    whole = alone(backend, request(1, prompt_of(5, 5), most))
    first_seen = {token: whole.index(token) for token in whole}
    assert len(first_seen) > 3, "the answer varies too little to be a test"
    for token, position in first_seen.items():
        for max_tokens in (position + 1, most):
            stopped = request(1, prompt_of(5, 5), max_tokens, stop=(511, token, whole[-1]))
            neighbour = request(2, prompt_of(5, 5), most)
            courses = answers(backend, [stopped, neighbour])
            end = min(position, first_seen[whole[-1]])
            assert courses[1].tokens == whole[: end + 1]
            assert courses[1].retired == Retired(1, "stop")
            assert courses[2].tokens == whole
            assert courses[2].retired == Retired(2, "length")


def check_a_stop_token_in_the_prompt_is_nothing(make: MakeBackend) -> None:
    """Only generated tokens can stop a row."""
    prompt = prompt_of(9, 6)
    whole = alone(make(), request(1, prompt, 5))
    stop = next(token for token in prompt if token not in whole)
    assert alone(make(), request(1, prompt, 5, stop=(stop,))) == whole


def check_joining_changes_nobody(make: MakeBackend) -> None:
    """Whenever a row joins and whenever it leaves again, the other rows have the same tokens, and so has one
    that joins with it and stays."""
    backend = make()
    for begin, sampling in enumerate((GREEDY, SEEDED)):
        stays = request(1, prompt_of(2 * CHUNK + 3, 7), 6, sampling=sampling)
        guest = request(2, prompt_of(CHUNK + 5, 7), 40)
        friend = request(3, prompt_of(5, 7), 4, sampling=sampling)
        expected = {1: alone(backend, stays), 3: alone(backend, friend)}
        for joins in range(begin, 9, 2):
            for leaves in range(joins, 10, 4):
                journal = Journal(backend)
                journal.admit(stays)
                for step in range(leaves + 1):
                    if step == joins:
                        journal.admit(guest)
                        journal.admit(friend)
                    if step == leaves:
                        journal.remove(2)
                    journal.step()
                journal.finish()
                assert {1: journal.courses[1].tokens, 3: journal.courses[3].tokens} == expected


def check_removal_in_every_stage(make: MakeBackend) -> None:
    """A row just admitted, in prefill at any chunk, decoding at any token, or before its last one is gone
    immediately: it returns nothing more, its cache is freed, and its neighbours are not affected."""
    victim = request(1, prompt_of(3 * CHUNK, 8), 4)
    neighbours = [request(2, prompt_of(2, 8), 3), request(3, prompt_of(4 * CHUNK, 8), 5)]
    expected = _tokens(answers(make(), neighbours))
    life = 0
    course = Journal(make())
    course.admit(victim)
    while course.live:
        course.step()
        life += 1
    for lived in range(life):
        for company in ([], neighbours):
            backend = make()
            journal = Journal(backend)
            for submit in [*company[:1], victim, *company[1:]]:
                journal.admit(submit)
            for _ in range(lived):
                journal.step()
            journal.remove(1)
            if not company:
                assert kv_bytes(backend) == 0
            journal.finish()
            assert journal.courses[1].retired is None
            assert all(
                journal.courses[submit.request_id].tokens == expected[submit.request_id] for submit in company
            )
    assert course.courses[1].retired is not None


def check_refusals_change_nothing(make: MakeBackend) -> None:
    """An empty prompt and an id at or above the vocabulary are refused, in words, and a row that is running
    beside does not notice."""
    backend = make()
    vocabulary = backend.describe().vocabulary
    expected = alone(backend, request(1, prompt_of(CHUNK + 1, 10), 4))
    journal = Journal(backend)
    course = journal.admit(request(1, prompt_of(CHUNK + 1, 10), 4))
    for step, prompt in enumerate([[], [2**32 - 1], [vocabulary], [0, 1, vocabulary, 2]]):
        with pytest.raises(RequestRefused, match="vocabulary" if prompt else "empty"):
            backend.check(EngineSequence.of(request(2 + step, prompt)))
        journal.step()
    journal.finish()
    assert course.tokens == expected
    with pytest.raises(RequestRefused, match="max_tokens"):
        backend.check(EngineSequence.of(request(8, prompt_of(3, 10), 0)))
    edge = request(9, [0, vocabulary - 1], 1)
    assert len(alone(backend, edge)) == 1


def check_the_same_again_is_the_same(make: MakeBackend) -> None:
    """A request has the same tokens now, later, and on another back end of its kind."""
    for sampling in (GREEDY, SEEDED):
        submit = request(1, prompt_of(CHUNK + 3, 11), 8, sampling=sampling)
        backend = make()
        first = alone(backend, submit)
        assert alone(backend, msgspec.structs.replace(submit, request_id=2)) == first
        assert alone(make(), submit) == first


def check_logprobs_are_only_for_rows_that_asked(make: MakeBackend) -> None:
    """One with each token of the requesting rows, whatever their neighbours request; the likeliest best
    first, the requested number of them, and the chosen one's own. Other rows get none, and their tokens are
    unchanged."""
    backend = make()
    for sampling in (GREEDY, SEEDED):
        plain = [request(number, prompt_of(3 + number, 13), 5, sampling=sampling) for number in range(6)]
        expected = _tokens(answers(backend, plain))
        tops = (None, 0, 5, None, MAX_TOP_LOGPROBS, 1)
        asking = [
            msgspec.structs.replace(submit, top_logprobs=top) for submit, top in zip(plain, tops, strict=True)
        ]
        courses = answers(backend, asking)
        assert _tokens(courses) == expected
        for course, top in zip(courses.values(), tops, strict=True):
            assert all((found is None) == (top is None) for found in course.logprobs)
            for token, found in zip(course.tokens, course.logprobs, strict=True):
                if found is not None:
                    _check_logprobs(token, found, top or 0)
    for top in (-1, MAX_TOP_LOGPROBS + 1):
        asks = msgspec.structs.replace(request(9, prompt_of(3, 13)), top_logprobs=top)
        with pytest.raises(RequestRefused, match="top_logprobs"):
            backend.check(EngineSequence.of(asks))


def _check_logprobs(token: int, found: LogprobsOut, top: int) -> None:
    values = [value for _, value in found.top]
    assert len(values) == top
    assert values == sorted(values, reverse=True)
    assert len({other for other, _ in found.top}) == top
    assert -9999 <= found.chosen <= 0
    likely = dict(found.top)
    assert likely.get(token, found.chosen) == found.chosen
    assert token in likely or not values or found.chosen <= values[-1]


def check_prompts_are_scored_for_rows_that_asked(make: MakeBackend) -> None:
    """Each token but the first, once and in order, also where the prompt is cached; answers are as ever."""
    backend = make()
    lengths = (1, 2, CHUNK, CHUNK + 1, 3 * CHUNK + 5, 20)
    plain = [request(number, prompt_of(length, 17), 5) for number, length in enumerate(lengths)]
    expected = _tokens(answers(backend, plain))
    tops = (0, 5, 1, MAX_TOP_LOGPROBS, 2, None)
    asking = [
        msgspec.structs.replace(submit, prompt_logprobs=top) for submit, top in zip(plain, tops, strict=True)
    ]
    for _ in range(2):
        courses = answers(backend, asking)
        assert _tokens(courses) == expected
        for course, top in zip(courses.values(), tops, strict=True):
            assert len(course.prompt_logprobs) == (0 if top is None else len(course.submit.prompt) - 1)
            scored = course.submit.prompt[1:] if course.prompt_logprobs else []
            for token, found in zip(scored, course.prompt_logprobs, strict=True):
                _check_logprobs(token, found, top or 0)
    asks = msgspec.structs.replace(request(9, prompt_of(3, 13)), prompt_logprobs=MAX_TOP_LOGPROBS + 1)
    with pytest.raises(RequestRefused, match="prompt_logprobs"):
        backend.check(EngineSequence.of(asks))


def check_an_answer_taken_up_again_has_the_same_logprobs(make: MakeBackend) -> None:
    """From any position: no token that was emitted before, and the tokens that would have followed."""
    backend = make()
    for sampling in (GREEDY, SEEDED):
        whole = msgspec.structs.replace(
            request(1, prompt_of(CHUNK + 2, 14), 8, sampling=sampling), top_logprobs=3
        )
        course = answers(backend, [whole])[1]
        for done in (1, 3, 7):
            rest = msgspec.structs.replace(
                whole, request_id=2, prompt=compact([*whole.prompt, *course.tokens[:done]]), done_tokens=done
            )
            found = answers(backend, [rest, request(3, prompt_of(5, 14), 4)])[2]
            assert found.tokens == course.tokens[done:]
            for logprobs, expected in zip(found.logprobs, course.logprobs[done:], strict=True):
                assert logprobs is not None
                assert expected is not None
                assert logprobs.chosen == pytest.approx(expected.chosen, abs=1e-4)
                assert [other for other, _ in logprobs.top] == [other for other, _ in expected.top]


def check_min_tokens_hold_back_the_end(make: MakeBackend) -> None:
    """No stop token is among the first `min_tokens`, one may be the next; those of a resumed answer count,
    and a neighbour with the same stop token ends where it would."""
    backend = make()
    prompt = prompt_of(5, 15)
    whole = alone(backend, request(1, prompt, 10))
    stop = whole[2]
    end = whole.index(stop)
    for min_tokens in (0, end, end + 1, 6, 10):
        held = msgspec.structs.replace(request(1, prompt, 10, stop=(511, stop)), min_tokens=min_tokens)
        neighbour = request(2, prompt, 10, stop=(511, stop))
        courses = answers(backend, [held, neighbour])
        assert courses[2].tokens == whole[: end + 1]
        tokens = courses[1].tokens
        if min_tokens <= end:
            assert tokens == courses[2].tokens
            continue
        assert tokens[:end] == whole[:end]
        assert not {stop, 511}.intersection(tokens[:min_tokens])
        assert len(tokens) == 10 or courses[1].retired == Retired(1, "stop")
        rest = msgspec.structs.replace(
            held, request_id=3, prompt=compact([*prompt, *tokens[:2]]), done_tokens=2
        )
        assert alone(backend, rest) == tokens[2:]


def check_drafts_change_no_token(make: MakeBackend) -> None:
    """Right to the end, wrong at once, and right up to a place: every row has the tokens, log-probabilities
    and end that it has without drafts, one model call for what is accepted and one token behind it."""
    backend = make()
    if not backend.facts.verifies:
        return
    stop = answers(backend, [request(3, prompt_of(9, 18), 12)])[3].tokens[7]
    submits = [
        request(1, prompt_of(CHUNK + 3, 18), 12),
        request(2, prompt_of(5, 18), 16, sampling=SEEDED),
        request(3, prompt_of(9, 18), 12, stop=(stop,)),
        msgspec.structs.replace(request(4, prompt_of(2 * CHUNK, 18), 9), top_logprobs=2),
        msgspec.structs.replace(
            request(5, prompt_of(3, 18), 10, stop=(stop,), sampling=SEEDED), min_tokens=6
        ),
    ]
    plain = answers(backend, submits)
    for seed in range(4):
        generator = random.Random(seed)

        def guess(row: EngineSequence, generator: random.Random = generator) -> list[int]:
            rest = plain[row.request_id].tokens[row.generated_tokens :]
            drafts = rest[: generator.randrange(6)]
            if drafts and generator.random() < 0.5:
                drafts[generator.randrange(len(drafts))] = generator.randrange(VOCABULARY)
            return drafts

        found = answers(backend, submits, guess)
        assert _tokens(found) == _tokens(plain)
        for number, course in found.items():
            assert course.retired == plain[number].retired
        for one, other in zip(found[4].logprobs, plain[4].logprobs, strict=True):
            assert one is not None
            assert other is not None
            assert one.chosen == pytest.approx(other.chosen, abs=1e-5)
    journal = Journal(backend, lambda row: plain[row.request_id].tokens[row.generated_tokens :][:5])
    journal.admit(submits[0])
    journal.step_until(lambda: bool(journal.courses[1].tokens))
    before = len(journal.courses[1].tokens)
    journal.step()
    journal.step()  # The first may have returned what was pending.
    assert len(journal.courses[1].tokens) >= before + 6
    journal.finish()


def check_memory_holds_the_rows(make: MakeBackend) -> None:
    """The allocator's bytes are at least the rows' bytes, and never more than its peak."""
    backend = make()
    journal = Journal(backend)
    journal.admit(request(1, prompt_of(2 * CHUNK, 12), 3))
    journal.step()
    journal.step()
    memory = backend.device.memory()
    assert 0 < kv_bytes(backend) <= memory.active <= memory.peak
    assert memory.cached >= 0 <= memory.recommended
    journal.finish()


def check_a_step_of_nobody_is_nothing(make: MakeBackend) -> None:
    """Without rows a step returns an empty result, whatever its plan says."""
    backend = make()
    for _ in range(2):
        for plan in (StepPlan(), StepPlan(chunks=(Chunk(1, 8),), decode=(2,)), StepPlan(emit_pending=True)):
            result = backend.execute(plan)
            assert [*result.tokens, *result.retired, *result.prefills, *result.refused] == []
            assert (result.computed_prefill_tokens, result.decoded_rows, result.kv_bytes) == (0, 0, 0)
        assert len(alone(backend, request(1, [1, 2], 2))) == 2


CHECKS: tuple[Callable[[MakeBackend], None], ...] = (
    check_it_has_the_members_of_a_back_end,
    check_every_row_ends_by_itself_once,
    check_prefill_goes_in_chunks,
    check_decoding_goes_on_during_prefill,
    check_a_stop_token_ends_the_row,
    check_a_stop_token_in_the_prompt_is_nothing,
    check_joining_changes_nobody,
    check_removal_in_every_stage,
    check_refusals_change_nothing,
    check_the_same_again_is_the_same,
    check_logprobs_are_only_for_rows_that_asked,
    check_prompts_are_scored_for_rows_that_asked,
    check_an_answer_taken_up_again_has_the_same_logprobs,
    check_min_tokens_hold_back_the_end,
    check_drafts_change_no_token,
    check_memory_holds_the_rows,
    check_a_step_of_nobody_is_nothing,
)
