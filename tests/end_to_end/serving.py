"""A real server in a separate process, on a free port."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from loadtests.processes import engines
from scheduler.models.random_qwen3 import TINY, ensure_model
from scheduler.shared.user_cache import user_cache_folder
from tests.end_to_end.preloaded import Penstock, start_penstock
from tests.repo.tree import ROOT

START_SECONDS = 100
"""As `ANSWER_SECONDS` a bound on what hangs: a busy machine takes tens of seconds to import everything."""
ANSWER_SECONDS = 60


def random_model() -> tuple[str, ...]:
    """Random weights. Their answers never end by themselves and depend on every token before, which is what
    most tests need; tests of meaning use the embedded model."""
    folder = ensure_model(TINY, "tiny", user_cache_folder(os.environ))
    return ("--model", str(folder), "--served-model-name", "random")


@dataclass
class Served:
    """A running `penstock serve`."""

    process: subprocess.Popen[str] | Penstock
    port: int
    lines: list[str]
    log: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> tuple[int, Any]:
        return _answer(Request(self.url + path), ANSWER_SECONDS)

    def post(
        self, path: str = "/v1/chat/completions", *, timeout_seconds: float = 60, **fields: Any
    ) -> tuple[int, Any]:
        """Ask for a short answer to a greeting, unless the fields say something else."""
        if path == "/v1/chat/completions":
            fields = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, **fields}
        request = Request(self.url + path, json.dumps(fields).encode(), {"content-type": "application/json"})
        return _answer(request, timeout_seconds)

    def metric(self, name: str, *labels: str) -> float:
        """Return the sum of the series of this name with these labels, among others."""
        with urlopen(self.url + "/metrics", timeout=ANSWER_SECONDS) as answer:
            text = answer.read().decode()
        lines = (re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line) for line in text.splitlines())
        values = [
            float(found[2]) for found in lines if found and all(label in (found[1] or "") for label in labels)
        ]
        if not values:
            raise KeyError(name)
        return sum(values)

    def engine_pid(self) -> int:
        """The server's one engine."""
        (pid,) = engines(self.process.pid)
        return pid


def _answer(request: Request, seconds: float) -> tuple[int, Any]:
    try:
        with urlopen(request, timeout=seconds) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


class Options(TypedDict, total=False):
    """How a server is started, beside its arguments."""

    environment: dict[str, str]
    trained: bool
    """The embedded model, unless the arguments name one; otherwise random weights."""
    default: bool
    """No model is named."""
    descriptors: int
    """The soft and the hard limit of open files."""
    group: Path
    """The list of a control group's processes, in which it starts."""
    last: str
    """The beginning of the last line that it prints as it starts."""


@contextmanager
def serving(*arguments: str, **options: Unpack[Options]) -> Iterator[Served]:
    """Serve until the block is left; then the process is gone, and its exit was clean."""
    with start(*arguments, **options) as served:
        yield served
        stop(served)


@contextmanager
def start(*arguments: str, **options: Unpack[Options]) -> Iterator[Served]:
    """As `serving`, but the test ends it itself (it is killed if still there)."""
    default, trained = options.get("default", False), options.get("trained", False)
    is_named = default or "--model" in arguments or "--models" in arguments
    trained_model = () if is_named else ("--model", "embedded")
    model = trained_model if trained or default else random_model()
    command = ("serve", "--port", "0", "--log-format", "json", *model, *arguments)
    before = [f"ulimit -n {options['descriptors']}"] if "descriptors" in options else []
    before += [f"echo $$ > {options['group']}"] if "group" in options else []
    process = start_penstock(*command, environment=options.get("environment"), before=before)
    assert process.stdout is not None
    assert process.stderr is not None
    served = Served(process, 0, [])
    reader = threading.Thread(target=lambda: served.log.extend(process.stderr or ()), daemon=True)
    reader.start()
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            served.lines.append(line.rstrip("\n"))
            if found := re.match(r"listening +http://(?:127.0.0.1|0.0.0.0):(\d+)", line):
                served.port = int(found[1])
            if line.startswith(options.get("last", "try ")):
                break
        watchdog.cancel()
        assert served.port, f"the server did not start: {served.lines} {served.log}"
        yield served
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


def at_start(folder: Path, source: str) -> dict[str, str]:
    """Return the environment in which Python runs this source as it starts, from a file in the folder."""
    (folder / "sitecustomize.py").write_text(source)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def stop(served: Served, within_seconds: float = 60) -> None:
    """SIGTERM, and exit 0 within the time."""
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(within_seconds) == 0, served.log[-20:]


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when the condition holds. The time is a bound on failure, not a measurement."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
