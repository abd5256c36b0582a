"""A server that cannot start says so in one line, and what to do: through the real `penstock serve`."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from tests.end_to_end.preloaded import run_penstock

pytestmark = pytest.mark.timeout(400)
SECONDS = 300
"""A busy machine imports transformers for minutes."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def serve(*arguments: str) -> tuple[int, list[str]]:
    """Return the exit status, and the lines of stderr that are errors: all but log lines below that level and
    transformers' warnings."""
    done = run_penstock("serve", "--log-format", "json", "--port", "0", *arguments, timeout=SECONDS)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[transformers]")]
    return done.returncode, [line for line in lines if not line.startswith("{") or '"level": "error"' in line]


def cut_short(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size // 2)


def without_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def without_config(folder: Path) -> None:
    (folder / CONFIG).unlink()


def damaged_config(folder: Path) -> None:
    (folder / CONFIG).write_text('{"model_type": ')


def unreadable_config(folder: Path) -> None:
    """Also for root, who may read everything."""
    (folder / CONFIG).unlink()
    (folder / CONFIG).mkdir()


def changed(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | values))

    return change


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut_short, "model.safetensors is cut short: it has"),
        (without_tokenizer, "holds no tokenizer.json: download it again"),
        (damaged_tokenizer, "the tokenizer in"),
        (changed(model_type="martian"), "has no model of type 'martian': upgrade mlx-lm"),
        # `scheduler/prompt/test_model_folder.py` has the words of these.
        pytest.param(without_weights, "holds no model*.safetensors", marks=pytest.mark.long),
        pytest.param(without_config, "holds no config.json", marks=pytest.mark.long),
        pytest.param(damaged_config, "config.json cannot be read", marks=pytest.mark.long),
        pytest.param(unreadable_config, "config.json cannot be read", marks=pytest.mark.long),
        pytest.param(
            changed(vocab_size="many"), "config.json has a value of a wrong type", marks=pytest.mark.long
        ),
        # What only the engine finds out.
        (changed(hidden_size=8), "the weights are not those that config.json describes"),
    ],
)
def test_a_model_that_cannot_be_served_is_one_line(
    spoil: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED_FOLDER, folder)
    spoil(folder)
    status, lines = serve("--model", str(folder))
    assert status == 1
    assert len(lines) == 1, lines
    assert lines[0].startswith("penstock: ")
    assert words in lines[0]


def test_the_stack_of_a_failed_load_is_logged_at_debug_level(tmp_path: Path) -> None:
    """For whom one line is not enough."""
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED_FOLDER, folder)
    changed(hidden_size=8)(folder)
    options = ("--port", "0", "--log-format", "json", "--log-level", "debug")
    done = run_penstock("serve", *options, "--model", str(folder), timeout=SECONDS)
    stacks = [json.loads(line) for line in done.stderr.splitlines() if "engine_load_failed" in line]
    assert [one["level"] for one in stacks] == ["debug"]
    assert "Traceback (most recent call last)" in stacks[0]["stack"]
    assert "load_weights" in stacks[0]["stack"]


def test_weights_beyond_the_memory_limit_are_one_line_with_the_numbers() -> None:
    status, lines = serve("--model", "embedded", "--memory-limit", "70MB")
    assert (status, len(lines)) == (1, 1)
    assert "the weights take 13.9 MB" in lines[0]
    assert "the limit is 70.0 MB" in lines[0]
    assert "--memory-limit" in lines[0]


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, lines = serve("--port", str(port), "--engine", "scripted")
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith(f"penstock: cannot listen on 127.0.0.1:{port}: the port is in use")
    assert f"--port {port % 65535 + 1} " in lines[0]
    assert f"`penstock doctor --port {port}`" in lines[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    status, lines = serve("--model", str(tmp_path / "closed" / "model"))
    assert (status, len(lines)) == (1, 1)
    assert "cannot be read" in lines[0]
