"""What a child process says of this machine and of a model, and what fits into its memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from api.cli import machine
from api.cli.errors import OperatorError
from api.cli.machine import Answer, Machine, ModelMemory, ask, memory_plan, read_answer
from scheduler.engine.budget.limits import MemoryTooSmall
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.shared.row_bytes import RowBytes, Window
from tests.fakes.model_files import model_files, write_files

GB = 10**9


@pytest.mark.slow
def test_a_child_measures_a_model_without_reading_weights(tmp_path: Path) -> None:
    """As the engine measures it after loading; a folder that is none has mlx-lm's words."""
    code = write_files(tmp_path / "code", model_files(model_file="evil.py") | {"evil.py": b"evil"})
    answer = ask(EMBEDDED_FOLDER)
    assert answer.model == ModelMemory(13_907_456, RowBytes(5120), RowBytes(1440))
    assert answer.machine.machine_bytes > 0
    refused = ask(code).model
    assert refused is not None
    assert "evil.py" in refused.error, "mlx-lm names it and does not run it"


def test_lines_become_an_answer() -> None:
    """A child that died may have left no line of the model."""
    device = {"device": "cpu", "kind": "cpu", "wide_weights": True, "machine_bytes": 8, "info": {"a": "b"}}
    row = {"token_bytes": 5, "state_bytes": 6, "windows": [{"tokens": 7, "token_bytes": 8}]}
    model = {"folder": "a", "weights_bytes": 9, "row": row, "q8_row": None}
    found = Machine("cpu", "cpu", wide_weights=True, machine_bytes=8, info={"a": "b"})
    measured = ModelMemory(9, RowBytes(5, 6, (Window(7, 8),)))
    first = json.dumps(device).encode() + b"\n"
    assert read_answer(first) == Answer(found, None)
    assert read_answer(first + json.dumps(model).encode() + b"\n") == Answer(found, measured)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["no_such_module_of_ours", "this"])
def test_a_machine_without_mlx_is_an_error_with_the_childs_last_words(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it wrote instead of answers."""
    monkeypatch.setattr(machine, "_MODULE", module)
    with pytest.raises(OperatorError, match="MLX does not work"):
        ask()


def mac(gigabytes: int) -> Machine:
    """Metal recommends three quarters of the memory."""
    info: dict[str, Any] = {"max_recommended_working_set_size": gigabytes * GB * 3 // 4}
    return Machine("Apple", "metal", False, gigabytes * GB, info)


def test_a_plan_is_the_engines_own_limit_and_budget() -> None:
    """95 % of Metal's recommendation; of it weights, pool, process and the peak of a chunk leave the KV."""
    plan = memory_plan(mac(16), 4 * GB)
    assert plan.limit_bytes == int(12 * GB * 0.95)
    assert 5 * GB < plan.kv_bytes < 6 * GB
    with pytest.raises(MemoryTooSmall, match=r"the weights take 4.00 GB.* limit is 2.85 GB"):
        memory_plan(mac(4), 4 * GB)


@settings(deadline=None)
@given(
    gigabytes=st.integers(8, 512),
    token_bytes=st.integers(0, 10**6),
    state_bytes=st.integers(1, 10**8),
    tokens=st.integers(1, 10**6),
)
def test_agents_that_a_plan_counts_fit_into_its_kv(
    gigabytes: int, token_bytes: int, state_bytes: int, tokens: int
) -> None:
    """One more does not."""
    row = RowBytes(token_bytes, state_bytes, (Window(1024, 1000),))
    plan = memory_plan(mac(gigabytes), GB)
    agents = plan.agents(row, tokens)
    assert agents * row.held(tokens) <= plan.kv_bytes < (agents + 1) * row.held(tokens)
