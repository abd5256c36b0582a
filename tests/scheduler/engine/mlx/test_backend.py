"""The real back end keeps the contract that the scripted one keeps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from scheduler.engine.mlx.batching import ONE_ROW
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from tests.contracts.check_backend import CHECKS, CHUNK, MAX_ROWS, MakeBackend
from tests.contracts.check_thinking import THINKING_CHECKS
from tests.contracts.journal import GREEDY, Journal, request
from tests.examples import sampled
from tests.scheduler.engine.mlx.conftest import Tiny


@pytest.mark.parametrize("check", [*CHECKS, *THINKING_CHECKS])
@pytest.mark.parametrize("prefill_rows", sampled([1, 8], [8]))
def test_contract(check: Callable[[MakeBackend], None], prefill_rows: int, tiny: Tiny) -> None:
    """Whatever the contract of back ends says, with prompts read one by one and together."""
    check(lambda: tiny.backend(max_slots=MAX_ROWS, prefill_chunk_tokens=CHUNK, prefill_rows=prefill_rows))


@pytest.mark.parametrize("check", [*CHECKS, *THINKING_CHECKS])
@pytest.mark.usefixtures("device_of_its_own")
def test_contract_on_a_device_of_its_own(check: Callable[[MakeBackend], None], tiny: Tiny) -> None:
    """The same where nothing is computed on the host."""
    check(lambda: tiny.backend(max_slots=MAX_ROWS, prefill_chunk_tokens=CHUNK, prefill_rows=8))


@pytest.mark.parametrize("check", CHECKS)
def test_contract_with_one_row_at_a_time(check: Callable[[MakeBackend], None], tiny: Tiny) -> None:
    """The same for a model that cannot run in batches."""
    rows = {"max_slots": MAX_ROWS, "prefill_chunk_tokens": CHUNK, "prefill_rows": 8}
    check(lambda: tiny.backend(batching=ONE_ROW, **rows))


@pytest.mark.parametrize("token", [-1, 512, 1 << 31])
def test_a_bias_outside_the_vocabulary_is_refused(tiny: Tiny, token: int) -> None:
    """It would index outside an array on the device; nothing of the request stays behind."""
    backend = tiny.backend()
    biased = msgspec.structs.replace(GREEDY, logit_bias=((3, 1.0), (token, 1.0)))
    with pytest.raises(RequestRefused, match=f"logit_bias: token {token}"):
        backend.check(EngineSequence.of(request(1, [1, 2], sampling=biased)))
    journal = Journal(backend)
    journal.admit(request(1, [1, 2], 2))
    journal.finish()
