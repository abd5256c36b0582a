"""Servers are started, ready, and gone: small fakes in separate processes, and Penstock itself."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from loadtests import launch
from loadtests.launch import Bench, LaunchError, server, servers
from loadtests.processes import processes
from loadtests.targets import PRESETS, Launch, Preset, Target
from scheduler.engine.mlx.cpu.fast_blas import BlasChoice
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from tests.end_to_end.serving import eventually

_SERVER = """
import http.server, os, signal, subprocess, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, b'{"data": [{"id": "first"}]}')

    def do_POST(self):
        STATUS = 200
        chunk = b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]}'
        self.answer(STATUS, chunk + b"\\n\\ndata: [DONE]\\n\\n")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

print("home", os.environ["HOME"], "threads", os.environ["OPENBLAS_NUM_THREADS"], flush=True)
EXTRA
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

_CHILD = 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])\n'
_DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@dataclass
class Fake:
    """How to launch a script as if it were a preset, and the notes."""

    launch: Launch
    bench: Bench
    notes: list[str] = field(default_factory=list)
    _groups: set[int] = field(default_factory=set)  # That were seen: a leader may end before its children.

    def processes(self) -> list[int]:
        """The processes of this fake, including its children: they share its group."""
        found, script = processes(), self.launch.preset.arguments[0]
        self._groups |= {one.pid for one in found if script in one.command}
        return [one.pid for one in found if one.group in self._groups]


MakeFake = Callable[..., Fake]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeFake:
    """`fake(extra code, patience...)`. Homes are made below the test's own folder."""
    homes = tmp_path / "homes"
    homes.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(homes))
    monkeypatch.setenv("PENSTOCK_BENCH_FAKE", sys.executable)

    def make(extra: str = "", status: int = 200, **patience: float) -> Fake:
        script = tmp_path / "server.py"
        script.write_text(_SERVER.replace("EXTRA", extra).replace("STATUS = 200", f"STATUS = {status}"))
        preset = Preset("fake", (str(script), "{port}"), frozenset(), "PENSTOCK_BENCH_FAKE", model="f")
        bench = Bench(tmp_path, BlasChoice("none"), **{"start_seconds": 30.0, **patience})  # type: ignore[arg-type]
        return Fake(Launch("one", preset), bench)

    return make


def homes(fake: Fake) -> list[Path]:
    return list((fake.bench.model / "homes").iterdir())


async def started_and_stopped(fake: Fake) -> Target:
    async with server(fake.launch, fake.bench, fake.notes.append) as target:
        assert fake.processes()
        return target


async def failing(fake: Fake, *choices: Target | Launch) -> str:
    """Return the error's message; nothing is left behind, and the block was never entered."""
    with pytest.raises(LaunchError) as caught:
        async with servers(choices or [fake.launch], fake.bench, fake.notes.append):
            pytest.fail("it is not there")
    assert fake.processes() == []
    assert homes(fake) == []
    return str(caught.value)


def test_a_server_is_there_while_it_is_measured_and_gone_after(fake: MakeFake) -> None:
    """With its children and its home."""
    one = fake(_CHILD)
    target = trio.run(started_and_stopped, one)
    assert (target.name, target.model) == ("one", "f")
    assert [note.split(" after")[0] for note in one.notes] == ["one: starting fake", "one: ready"]
    eventually(lambda: not one.processes(), 10)  # Killed orphans are listed until init reaps them.
    assert homes(one) == []


@pytest.mark.parametrize(
    ("extra", "how", "said"),
    [
        ("sys.exit('no such model')", {}, "one: the server exited with status 1:\n.*  no such model"),
        ("import time; time.sleep(600)", {"start_seconds": 1.0}, "one: no answer within 1 s:\n  home "),
        # Only a completion proves readiness.
        ("", {"status": 500}, "one: http.* does not answer: http_error: 500 "),
    ],
)
def test_a_server_that_does_not_answer_is_an_error_with_its_last_words(
    extra: str, how: dict[str, Any], said: str, fake: MakeFake
) -> None:
    assert re.match(said, trio.run(failing, fake(extra, **how)), re.S)


def test_a_server_that_does_not_obey_is_killed(fake: MakeFake) -> None:
    """With its whole group, and a note says so."""
    one = fake(_DEAF + _CHILD, stop_seconds=0.2)
    trio.run(started_and_stopped, one)
    assert one.notes[-1] == "one: killed; it did not stop within 0.2 s"
    eventually(lambda: not one.processes(), 10)  # Killed orphans are listed until init reaps them.


def test_the_callers_environment_favours_nobody(tmp_path: Path) -> None:
    """Options of the shell are removed; the library and its threads are the same for all, Penstock gets the
    library by its own option, and its packages alone."""
    base = {"PATH": "p", "HOME": "h", "PENSTOCK_MAX_SLOTS": "1", "LD_PRELOAD": "x", "HF_TOKEN": "t"}
    blas = BlasChoice("fast", tmp_path / "blas.so")
    theirs = launch.environment(base, tmp_path, PRESETS["rapid-mlx"], blas, tmp_path)
    ours = launch.environment(base, tmp_path, PRESETS["penstock"], blas, tmp_path)
    assert theirs.pop("LD_PRELOAD") == str(tmp_path / "blas.so")
    assert ours.pop("PYTHONPATH") == str(tmp_path)
    assert theirs == ours
    assert (ours["HOME"], ours["PATH"]) == (str(tmp_path), "p")
    assert not {"PENSTOCK_MAX_SLOTS", "LD_PRELOAD", "HF_TOKEN"} & set(ours)
    arguments = launch.arguments(Launch("a", PRESETS["penstock"]), Bench(tmp_path, blas, slots=5), 8)
    assert arguments[-4:] == ["--port", "8", "--max-slots", "5"]


def test_penstock_itself_is_launched_by_its_preset() -> None:
    """The scripted engine on the embedded model; the metrics are at the preset's path."""
    ours = Launch("ours", PRESETS["penstock"], ("--engine", "scripted"))

    async def main() -> str:
        async with server(ours, Bench(EMBEDDED_FOLDER, BlasChoice("none")), print) as target:
            return await trio.to_thread.run_sync(lambda: httpx.get(str(target.metrics_url)).text)

    assert "penstock_" in trio.run(main)
