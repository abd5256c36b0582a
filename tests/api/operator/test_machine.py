"""What a child process says of this machine and of models, and what is made of one that says nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.operator import machine
from api.operator.errors import OperatorError
from api.operator.machine import ModelMemory, ask, read_answers
from scheduler.engine.row_bytes import RowBytes, Window
from scheduler.models.embedded_model import EMBEDDED_FOLDER

DEVICE = json.dumps({"device": "cpu", "kind": "cpu", "wide_weights": True, "machine_bytes": 8, "info": {}})


def test_a_child_measures_models_without_reading_weights(tmp_path: Path) -> None:
    """As the engine measures them after loading; a folder that is none has mlx-lm's words."""
    answers = ask([EMBEDDED_FOLDER, tmp_path])
    assert answers.models == {EMBEDDED_FOLDER: ModelMemory(13_907_456, RowBytes(5120))}
    assert "config.json" in answers.reasons[tmp_path]
    assert answers.machine.machine_bytes > 0


def test_lines_become_answers_and_what_is_missing_has_a_reason() -> None:
    """A child that dies at its second model has answered for the first."""
    row = {"token_bytes": 5, "state_bytes": 6, "windows": [{"tokens": 7, "token_bytes": 8}]}
    lines = [DEVICE, json.dumps({"folder": "a", "weights_bytes": 9, "row": row})]
    answers = read_answers(lines, [Path("a"), Path("b")], "killed")
    assert answers.models == {Path("a"): ModelMemory(9, RowBytes(5, 6, (Window(7, 8),)))}
    assert answers.reasons == {Path("b"): "killed"}
    assert answers.machine.wide_weights


@pytest.mark.parametrize("module", ["no_such_module_of_ours", "this"])
def test_a_machine_without_mlx_is_an_error_with_the_childs_last_words(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it wrote instead of answers."""
    monkeypatch.setattr(machine, "_MODULE", module)
    with pytest.raises(OperatorError, match="MLX does not work"):
        ask()
