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
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


def serve(*arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Return the exit status, and the lines of stderr that are errors: all but log lines below that level and
    transformers' warnings."""
    options = ("serve", "--log-format", "json", "--port", "0", *arguments)
    done = run_penstock(*options, environment=environment, timeout=SECONDS)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[transformers]")]
    return done.returncode, [line for line in lines if not line.startswith("{") or '"level": "error"' in line]


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "words"),
    [
        (["--max-slots", "0"], {}, 2, "--max-slots"),
        (["--scripted", "die_at_step=1"], {}, 2, "die_at_step"),  # Faults are test code.
        (["--no-such-option"], {}, 2, "--no-such-option"),
        ([], {"PENSTOCK_MAX_SLOT": "3"}, 2, "PENSTOCK_MAX_SLOT"),
        (["--model", "./no/such/folder"], {}, 1, "--model"),
        (["--host", "192.0.2.1"], {}, 1, "penstock: cannot listen on 192.0.2.1:0"),
        (
            ["--model", "embedded", "--kv-disk", "/dev/null/kv"],
            {},
            1,
            "--kv-disk /dev/null/kv cannot be used",
        ),
        (
            ["--model", "embedded", "--adapter", "red=/dev/null/red"],
            {},
            1,
            "penstock: --adapter: the adapter 'red' cannot be used: /dev/null/red is not a folder",
        ),
        (
            ["--model", "embedded", "--memory-limit", "70MB"],
            {},
            1,
            "the weights take 13.9 MB",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    arguments: list[str], environment: dict[str, str], code: int, words: str
) -> None:
    """2 for an option, 1 for the thing it names; never a traceback."""
    status, lines = serve(*arguments, **environment)
    assert (status, "Traceback" in "".join(lines)) == (code, False), lines
    assert words in lines[-1]
    assert len(lines) == 1 or code == 2


def cut_short(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size // 2)


def changed(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | values))

    return change


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        # `scheduler/prompt/test_model_folder.py` has the words of more.
        (cut_short, "model.safetensors is cut short: it has"),
        (lambda folder: (folder / TOKENIZER).unlink(), "holds no tokenizer.json: download it again"),
        (lambda folder: (folder / TOKENIZER).write_text("{"), "the tokenizer in"),
        (changed(model_type="martian"), "has no model of type 'martian': upgrade mlx-lm"),
        # What only the engine finds out.
        (changed(hidden_size=8), "the weights are not those that config.json describes"),
    ],
)
def test_a_model_that_cannot_be_served_is_one_line(
    spoil: Callable[[Path], object], words: str, tmp_path: Path
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


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, lines = serve("--port", str(port), "--engine", "scripted")
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith(f"penstock: cannot listen on 127.0.0.1:{port}: the port is in use")
    assert f"--port {port % 65535 + 1} " in lines[0]
    assert f"`penstock doctor --port {port}`" in lines[0]
