"""The scripted back end keeps the contract, and the faults of tests occur at their moments."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.messages import ScriptedPlan
from tests.contracts.check_backend import CHECKS, CHUNK, MakeBackend
from tests.contracts.check_thinking import THINKING_CHECKS
from tests.contracts.check_vectors import VECTOR_CHECKS
from tests.contracts.journal import answers, prefixes_of, request


def _backend(plan: ScriptedPlan) -> ScriptedBackend:
    def no_wait(seconds: float) -> None:
        raise AssertionError("only a plan with step_seconds takes time")

    return ScriptedBackend(plan, sleep=no_wait)


@pytest.mark.parametrize("check", [*CHECKS, *THINKING_CHECKS, *VECTOR_CHECKS])
def test_contract(check: Callable[[MakeBackend], None]) -> None:
    """Whatever the contract of back ends says."""
    check(lambda: _backend(ScriptedPlan(prefill_tokens_per_step=CHUNK)))


def test_it_holds_no_answer_to_a_grammar() -> None:
    """It has no vocabulary to do so with, and says that rather than ignore it."""
    held = msgspec.structs.replace(request(1, [1], 3), grammar="start: /a/")
    with pytest.raises(RequestRefused, match="grammar"):
        _backend(ScriptedPlan()).check(EngineSequence.of(held))


def test_a_hold_is_kept_when_its_answer_ends() -> None:
    """For the tokens that it names, not for what comes after them."""
    backend = ScriptedBackend(ScriptedPlan(), kv_cache_bytes=1 << 20)
    answers(backend, [msgspec.structs.replace(request(1, list(range(10)), 3), holds=((6, 60.0),))])
    assert prefixes_of(backend).statistics().held_bytes == 6 * (KV_BYTES_PER_TOKEN + 4)


@pytest.mark.parametrize(
    ("kv_cache_bytes", "said"),
    [(1 << 20, ""), (6 * KV_BYTES_PER_TOKEN, "nothing of it is cached"), (0, "no prefix cache")],
)
def test_a_refused_hold_is_reported_with_the_answer(kv_cache_bytes: int, said: str) -> None:
    """The answer itself is whole."""
    backend = ScriptedBackend(ScriptedPlan(), kv_cache_bytes=kv_cache_bytes)
    courses = answers(
        backend, [msgspec.structs.replace(request(1, [1, 2, 3], 3), holds=((2, 60.0), (3, 60.0)))]
    )
    retired = courses[1].retired
    assert retired is not None
    assert (retired.reason, len(courses[1].tokens)) == ("length", 3)
    assert said in retired.hold_refusal
    assert bool(said) == bool(retired.hold_refusal)
