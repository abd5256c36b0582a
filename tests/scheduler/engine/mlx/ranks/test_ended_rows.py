"""A row that rank 0 ends for its grammar's time: it alone, with its next step."""

from __future__ import annotations

import pytest

from scheduler.engine.mlx.batching import Batching
from scheduler.engine.plan import StepPlan
from scheduler.shared.messages import Retired
from tests.contracts.journal import Journal, alone, prompt_of, request
from tests.scheduler.engine.mlx.conftest import Tiny


@pytest.mark.parametrize("batching", [Batching(), Batching(batched=False, prefixes=False, in_place=False)])
def test_it_is_retired_with_the_reason_and_no_other_row_notices(tiny: Tiny, batching: Batching) -> None:
    wanted = alone(tiny.backend(batching), request(1, prompt_of(9, 1), 12))
    backend = tiny.backend(batching)
    journal = Journal(backend)
    stays, ends = (journal.admit(request(number, prompt_of(9, number), 12)) for number in (1, 2))
    journal.step_until(lambda: len(ends.tokens) == 3)
    assert backend.slow_rows() == {}
    backend.execute(StepPlan(end=((2, "too slow"),)))
    journal.step()
    assert ends.retired == Retired(2, "failed", "too slow")
    assert len(ends.tokens) == 3
    journal.finish()
    assert stays.tokens == wanted
