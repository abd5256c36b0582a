"""What a child process says of this machine and of models, and what is made of one that says nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.cli import machine
from api.cli.errors import OperatorError
from api.cli.machine import ModelMemory, ask, read_answers
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.shared.row_bytes import RowBytes, Window
from tests.fakes.model_files import model_files, write_files

DEVICE = json.dumps({"device": "cpu", "kind": "cpu", "wide_weights": True, "machine_bytes": 8, "info": {}})


@pytest.mark.slow
def test_a_child_measures_models_without_reading_weights(tmp_path: Path) -> None:
    """As the engine measures them after loading; a folder that is none has mlx-lm's words."""
    code = write_files(tmp_path / "code", model_files(model_file="evil.py") | {"evil.py": b"evil"})
    answers = ask([EMBEDDED_FOLDER, tmp_path, code])
    assert answers.models == {EMBEDDED_FOLDER: ModelMemory(13_907_456, RowBytes(5120), RowBytes(1440))}
    assert "config.json" in answers.reasons[tmp_path]
    assert "evil.py" in answers.reasons[code], "mlx-lm names it and does not run it"
    assert answers.machine.machine_bytes > 0


def test_lines_become_answers() -> None:
    """A child that died may leave fewer answers than folders; a reason is one line."""
    row = {"token_bytes": 5, "state_bytes": 6, "windows": [{"tokens": 7, "token_bytes": 8}]}
    lines = [DEVICE, json.dumps({"folder": "a", "weights_bytes": 9, "row": row})]
    lines.append(json.dumps({"folder": "b", "error": "Missing\n" + "tensor " * 99}))
    answers = read_answers(lines)
    assert answers.models == {Path("a"): ModelMemory(9, RowBytes(5, 6, (Window(7, 8),)))}
    assert answers.reasons.keys() == {Path("b")}
    assert answers.reasons[Path("b")].startswith("Missing tensor")
    assert len(answers.reasons[Path("b")]) == 200
    assert answers.machine.wide_weights


@pytest.mark.slow
@pytest.mark.parametrize("module", ["no_such_module_of_ours", "this"])
def test_a_machine_without_mlx_is_an_error_with_the_childs_last_words(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it wrote instead of answers."""
    monkeypatch.setattr(machine, "_MODULE", module)
    with pytest.raises(OperatorError, match="MLX does not work"):
        ask()
