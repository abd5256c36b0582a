"""A real server under the profile, and the streams that give it steps."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
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
    """A server that runs."""

    url: str
    model: str
    folder: Path
    sampling: Sampling = "greedy"

    def run(self, prompts: Sequence[Sequence[int]], tokens: int, counting: bool) -> tuple[Run, Run]:
        """Stream an answer of this many tokens to each prompt, all at once. Return the engine's run and the
        server's. Raise TimeoutError if they do not come."""
        record.order(self.folder, counting)
        together = Barrier(len(prompts))
        with ThreadPoolExecutor(len(prompts)) as clients:
            list(clients.map(lambda one: self._stream(one, tokens, together), enumerate(prompts)))
        engine, server = self.folder / record.ENGINE, self.folder / record.SERVER
        seconds = _TIMEOUT_SECONDS
        return record.take(engine, len(prompts), seconds), record.take(server, len(prompts), seconds)

    def _stream(self, prompt: tuple[int, Sequence[int]], tokens: int, together: Barrier) -> None:
        """Read one stream to its end, at the cost of almost no processor time."""
        number, ids = prompt
        body: dict[str, Any] = {"model": self.model, "prompt": ids, "max_tokens": tokens}
        body |= {"stream": True, "ignore_eos": True, "temperature": 0}
        if self.sampling == "mixed":
            body |= mixed(random.Random(number), logprobs=False, stops=False)
        data = json.dumps(body).encode()
        where = urlsplit(self.url)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n"
        with socket.create_connection((where.hostname, where.port), _TIMEOUT_SECONDS) as link:
            together.wait(_TIMEOUT_SECONDS)
            link.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + data)
            end = b""
            while b"data: [DONE]" not in end:
                if not (read := link.recv(_READ_BYTES)):
                    raise ConnectionError(f"the stream was cut: {end.decode('utf-8', 'replace')}")
                end = (end + read)[-256:]


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
