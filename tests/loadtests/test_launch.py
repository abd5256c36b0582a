"""Servers are started, ready, and gone: small fakes in separate processes, and Penstock itself."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
import trio

from api.cli.process_table import processes
from loadtests import launch
from loadtests.launch import Bench, LaunchError, Patience, with_server, with_servers
from loadtests.presets import PRESETS, Preset
from loadtests.processes import is_gone
from loadtests.targets import Launch, Target
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

    def processes(self) -> list[int]:
        """The processes of this fake, including its children: they share its group. Found by the script's
        path."""
        script = self.launch.preset.arguments[0]
        found = processes()
        leaders = {one.pid for one in found if script in one.command}
        return [one.pid for one in found if one.group in leaders]


MakeFake = Callable[..., Fake]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeFake:
    """`fake(extra code, patience...)`. Homes are made below the test's own folder."""
    homes = tmp_path / "homes"
    homes.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(homes))

    def make(extra: str = "", status: int = 200, **patience: float) -> Fake:
        script = tmp_path / "server.py"
        script.write_text(_SERVER.replace("EXTRA", extra).replace("STATUS = 200", f"STATUS = {status}"))
        preset = Preset(
            "fake", frozenset(), "fake", "PENSTOCK_BENCH_FAKE", (str(script), "{port}"), model="f"
        )
        bench = Bench(tmp_path, BlasChoice("none"), patience=Patience(**{"start_seconds": 30.0, **patience}))
        return Fake(Launch("one", preset, Path(sys.executable)), bench)

    return make


def homes(fake: Fake) -> list[Path]:
    return list((fake.bench.model / "homes").iterdir())


async def started_and_stopped(fake: Fake) -> Target:
    async def body(target: Target) -> Target:
        assert fake.processes()
        return target

    return await with_server(fake.launch, fake.bench, body, fake.notes.append)


async def failing(fake: Fake) -> str:
    """Return the error's message; nothing is left behind, and the body never ran."""

    async def body(target: Target) -> None:
        pytest.fail("it is not there")

    with pytest.raises(LaunchError) as caught:
        await with_server(fake.launch, fake.bench, body, fake.notes.append)
    assert fake.processes() == []
    assert homes(fake) == []
    return str(caught.value)


def test_a_server_is_there_while_it_is_measured_and_gone_after(fake: MakeFake) -> None:
    """With its children and its home."""
    one = fake(_CHILD)
    target = trio.run(started_and_stopped, one)
    assert (target.name, target.model) == ("one", "f")
    assert [note.split(" after")[0] for note in one.notes] == ["one: starting fake", "one: ready"]
    assert _eventually_gone(one)
    assert homes(one) == []


def _eventually_gone(fake: Fake) -> bool:
    """Killed orphans are listed until init reaps them."""
    deadline = time.monotonic() + 10
    while fake.processes() and time.monotonic() < deadline:
        time.sleep(0.01)
    return fake.processes() == []


def test_a_server_that_dies_is_an_error_with_its_last_words(fake: MakeFake) -> None:
    """Immediately, and not at the timeout."""
    said = trio.run(failing, fake("sys.exit('no such model')"))
    assert said.startswith("one: the server exited with status 1:\n")
    assert said.endswith("  no such model")


def test_a_server_that_never_answers_is_an_error(fake: MakeFake) -> None:
    """The log shows its home and its threads."""
    said = trio.run(failing, fake("import time; time.sleep(600)", start_seconds=1.0))
    assert said.startswith("one: no answer within 1 s:")


def test_a_server_that_is_ready_but_cannot_complete_is_an_error(fake: MakeFake) -> None:
    """Only a completion proves readiness."""
    assert "its first completion was http_error: 500" in trio.run(failing, fake(status=500))


def test_a_server_that_does_not_obey_is_killed(fake: MakeFake) -> None:
    """With its whole group, and a note says so."""
    one = fake(_DEAF + _CHILD, stop_seconds=0.2)
    trio.run(started_and_stopped, one)
    assert one.notes[-1] == "one: killed; it did not stop within 0.2 s"
    assert _eventually_gone(one)


def test_a_death_while_it_is_measured_is_reported_and_ends_nothing(fake: MakeFake) -> None:
    """The load test records the failures."""
    one = fake()

    async def body(target: Target) -> str:
        (pid,) = one.processes()
        os.kill(pid, signal.SIGKILL)
        # Dead, and not reaped: the launcher must notice.
        # os.waitid would wait for that; macOS has it from Python 3.13 on.
        await trio.to_thread.run_sync(eventually, partial(is_gone, pid))
        return "recorded"

    async def main() -> str:
        return await with_server(one.launch, one.bench, body, one.notes.append)

    assert trio.run(main) == "recorded"
    assert one.notes[-1].startswith("one: the server was killed by SIGKILL; its log ends:\n  home ")


def test_cancellation_leaves_nothing_behind(fake: MakeFake) -> None:
    """As Ctrl-C does."""
    one = fake()

    async def main() -> None:
        with trio.CancelScope() as scope:

            async def body(target: Target) -> None:
                scope.cancel()
                await trio.sleep_forever()

            await with_server(one.launch, one.bench, body)

    trio.run(main)
    assert one.processes() == []
    assert homes(one) == []


def test_several_stand_at_once_beside_what_runs_already(fake: MakeFake) -> None:
    """In the given order; a running one without a model's name is asked for it."""
    one = fake()
    two = replace(one.launch, name="two")

    async def main() -> list[tuple[str, str]]:
        async def outer(up: Target) -> list[tuple[str, str]]:
            async def body(targets: tuple[Target, ...]) -> list[tuple[str, str]]:
                assert len(one.processes()) == 2
                return [(target.name, target.model) for target in targets]

            return await with_servers([Target("here", up.url, ""), two], one.bench, body)

        return await with_server(one.launch, one.bench, outer)

    assert trio.run(main) == [("here", "first"), ("two", "f")]


def test_a_program_that_is_not_there_is_named_before_anything_starts(fake: MakeFake) -> None:
    """With the variable that would name it."""
    one = fake()
    missing = replace(one.launch, name="two", program=None)

    async def body(targets: tuple[Target, ...]) -> None:
        pytest.fail("it is not there")

    with pytest.raises(LaunchError, match="set PENSTOCK_BENCH_FAKE to its virtual environment"):
        trio.run(with_servers, [one.launch, missing], one.bench, body, one.notes.append)
    assert one.notes == []
    with pytest.raises(LaunchError, match=r"there is no .*nowhere"):
        launch.command(replace(one.launch, program=Path("nowhere")), one.bench, 1)


def test_a_target_that_nobody_answers_for_needs_its_models_name() -> None:
    """Asked of a port where nobody listens."""
    with pytest.raises(LaunchError, match="give model="):
        trio.run(launch.find_model, Target("t", f"http://127.0.0.1:{launch.free_port()}", ""))


def test_what_a_running_target_lacks_is_known_before_anything_starts(fake: MakeFake) -> None:
    """Nobody there, though the model is named; a server that refuses what a run would send."""
    one = fake()
    nobody = Target("away", f"http://127.0.0.1:{launch.free_port()}", "m")
    choices: list[Target | Launch] = [one.launch, nobody]

    async def body(targets: tuple[Target, ...]) -> None:
        pytest.fail("it is not there")

    with pytest.raises(LaunchError, match=r"away: http.* does not answer: connect_failed"):
        trio.run(with_servers, choices, one.bench, body, one.notes.append)
    assert one.notes == []


def test_a_running_target_must_complete_before_the_run(fake: MakeFake) -> None:
    """With its status: a wrong key or an unknown model is no result of a load test."""

    async def main() -> None:
        one = fake(status=404)
        port = launch.free_port()
        script = str(one.launch.preset.arguments[0])
        async with trio.open_nursery() as nursery:
            started = partial(trio.run_process, [sys.executable, script, str(port)], check=False)
            nursery.start_soon(partial(started, env={"HOME": "h", "OPENBLAS_NUM_THREADS": "1"}))
            target = Target("here", f"http://127.0.0.1:{port}", "")
            while True:
                try:
                    await launch.find_model(target)
                    break
                except LaunchError:
                    await trio.sleep(0.05)
            with pytest.raises(LaunchError, match=r"here: http.* does not answer: http_error: 404"):
                await launch.answering(target, 30.0)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_folder_that_is_not_there_is_named_before_anything_starts(fake: MakeFake) -> None:
    """It would be a server's error after a minute."""
    one = fake()

    async def body(targets: tuple[Target, ...]) -> None:
        pytest.fail("it is not there")

    with pytest.raises(LaunchError, match=r"one: --model .*nowhere is not a folder"):
        trio.run(
            with_servers, [one.launch], replace(one.bench, model=Path("nowhere")), body, one.notes.append
        )
    assert one.notes == []


def test_a_target_that_wants_a_key_says_so() -> None:
    class Locked(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Locked) as server:
        threading.Thread(target=server.handle_request).start()
        with pytest.raises(LaunchError, match="key_env="):
            trio.run(launch.find_model, Target("t", f"http://127.0.0.1:{server.server_port}", ""))


def test_the_callers_environment_favours_nobody(tmp_path: Path) -> None:
    """Options of the shell are removed; the library and its threads are the same for all, Penstock gets the
    library by its own option."""
    base = {"PATH": "p", "HOME": "h", "PENSTOCK_MAX_SLOTS": "1", "LD_PRELOAD": "x", "HF_TOKEN": "t"}
    blas = BlasChoice("fast", tmp_path / "blas.so")
    theirs = launch.environment(base, tmp_path, PRESETS["rapid-mlx"], blas)
    ours = launch.environment(base, tmp_path, PRESETS["penstock"], blas)
    assert theirs.pop("LD_PRELOAD") == str(tmp_path / "blas.so")
    assert theirs == ours
    assert (ours["HOME"], ours["PATH"]) == (str(tmp_path), "p")
    assert not {"PENSTOCK_MAX_SLOTS", "LD_PRELOAD", "HF_TOKEN"} & set(ours)
    assert launch.environment({"OPENBLAS_NUM_THREADS": "3"}, tmp_path, PRESETS["penstock"], blas)[
        "OPENBLAS_NUM_THREADS"
    ] == "3"  # fmt: skip
    command = launch.command(Launch("a", PRESETS["penstock"]), Bench(tmp_path, blas, slots=5), 8)
    assert command[1:3] == ["-m", "api"]
    assert command[-4:] == ["--port", "8", "--max-slots", "5"]


@pytest.mark.parametrize(
    ("files", "tokens"),
    [
        ({"config.json": '{"eos_token_id": 5}'}, (5,)),
        (
            {"config.json": '{"eos_token_id": 5}', "generation_config.json": '{"eos_token_id": [6, 7]}'},
            (6, 7),
        ),
        ({"config.json": "not json"}, ()),
        ({}, ()),
        ({"config.json": '{"eos_token_id": 5}', "penstock.json": '{"shape": {}}'}, ()),
        ({"config.json": '{"eos_token_id": 5}', "penstock.json": "{}"}, (5,)),
    ],
)
def test_the_end_tokens_are_the_models_own(
    tmp_path: Path, files: dict[str, str], tokens: tuple[int, ...]
) -> None:
    """None for our random weights: they do not end by themselves, and a bias would slow the peers."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert launch.end_tokens(tmp_path) == tokens


def test_penstock_itself_is_launched_by_its_preset() -> None:
    """The scripted engine on the embedded model; the metrics are at the preset's path."""
    ours = Launch("ours", PRESETS["penstock"], arguments=("--engine", "scripted"))

    async def body(target: Target) -> str:
        assert target.metrics_url is not None
        async with httpx.AsyncClient(trust_env=False) as http:
            return (await http.get(target.metrics_url)).text

    async def main() -> str:
        return await with_server(ours, Bench(EMBEDDED_FOLDER, BlasChoice("none")), body)

    assert "penstock_" in trio.run(main)
