"""A real server under the profile, and the streams that give it steps."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from rich.console import Console

from api.cli.started_server import ServerStart, started
from loadtests.step import record
from loadtests.step.record import Run
from loadtests.workload import mixed

_HOOKS = Path(__file__).with_name("hooks")
_ROOT = Path(__file__).parents[2]
_TIMEOUT_SECONDS = 120.0
_READ_BYTES = 1 << 16


Sampling: TypeAlias = Literal["greedy", "mixed"]
"""mixed: each request has its own temperature, cut-offs and penalties, as in the scenario of that name."""


@dataclass(slots=True)
class Served:
    """A server that runs, and how many runs its processes have written."""

    url: str
    model: str
    folder: Path
    sampling: Sampling = "greedy"
    lines: dict[str, int] = field(default_factory=lambda: {record.ENGINE: 0, record.SERVER: 0})

    def run(self, prompts: Sequence[Sequence[int]], tokens: int, counting: bool) -> tuple[Run, Run]:
        """Stream an answer of this many tokens to each prompt, all at once. Return the engine's run and the
        server's. Raise TimeoutError if they do not come."""
        record.order(self.folder, counting)
        together = Barrier(len(prompts))
        with ThreadPoolExecutor(len(prompts)) as clients:
            list(clients.map(lambda one: self._stream(one, tokens, together), enumerate(prompts)))
        found: list[Run] = []
        for name, start in self.lines.items():
            run, self.lines[name] = record.read(self.folder / name, start, len(prompts), _TIMEOUT_SECONDS)
            found.append(run)
        return found[0], found[1]

    def _stream(self, prompt: tuple[int, Sequence[int]], tokens: int, together: Barrier) -> None:
        """Read one stream to its end, at the cost of almost no processor time."""
        number, ids = prompt
        body = json.dumps(
            {
                "model": self.model,
                "prompt": ids,
                "max_tokens": tokens,
                "stream": True,
                "ignore_eos": True,
                **_sampling(self.sampling, number),
            }
        ).encode()
        where = urlsplit(self.url)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        with socket.create_connection((where.hostname, where.port), _TIMEOUT_SECONDS) as link:
            together.wait(_TIMEOUT_SECONDS)
            link.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
            end = b""
            while b"data: [DONE]" not in end:
                data = link.recv(_READ_BYTES)
                if not data:
                    raise ConnectionError(f"the stream was cut: {end.decode('utf-8', 'replace')}")
                end = (end + data)[-256:]


def _sampling(kind: Sampling, number: int) -> Mapping[str, Any]:
    """Return what the request with this number asks for."""
    if kind == "greedy":
        return {"temperature": 0}
    return mixed(random.Random(number), logprobs=False, stops=False)


def prompts(vocabulary: int, rows: int, tokens: int, salt: str) -> list[list[int]]:
    """Return prompts of one length without a common prefix."""
    draw = random.Random(f"{salt} {rows}")
    return [[draw.randrange(1, vocabulary) for _ in range(tokens)] for _ in range(rows)]


@contextmanager
def served(folder: Path, slots: int, sampling: Sampling = "greedy") -> Iterator[Served]:
    """Start a server of this model whose processes are profiled; end it behind the block. It takes no drafts,
    because a bare BatchGenerator has none."""
    # Without the options of the machine's owner, which may name a model.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    given = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_HOOKS), str(_ROOT), given)))
    arguments = ("--model", str(folder), "--max-slots", str(slots), "--speculation", "none")
    with TemporaryDirectory(prefix="penstock-step-") as kept:
        environment[record.FOLDER_VARIABLE] = kept
        start = ServerStart((*arguments, "--log-level", "warning"), None, environment)
        with started(start, Console(file=sys.stderr)) as server:
            yield Served(server.url, server.model(None).name, Path(kept), sampling)
