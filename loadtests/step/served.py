"""A real server under the profile, and the streams that give it steps."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from threading import Barrier
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from rich.console import Console

from api.cli.started_server import ServerStart, started
from loadtests.step.record import ADDRESS_VARIABLE, Run, take
from loadtests.workload import mixed

_HOOKS = Path(__file__).with_name("hooks")
_ROOT = Path(__file__).parents[2]
_TIMEOUT_SECONDS = 120.0

Sampling: TypeAlias = Literal["greedy", "mixed"]
"""mixed: each request has its own temperature, cut-offs and penalties, as in the scenario of that name."""


@dataclass(slots=True)
class Served:
    """A server that runs."""

    url: str
    model: str
    sampling: Sampling
    links: Sequence[Connection]
    """To the engine and to the server."""

    def run(self, prompts: Sequence[Sequence[int]], tokens: int, counting: bool) -> tuple[Run, Run]:
        """Stream an answer of this many tokens to each prompt, all at once. Return the engine's run and the
        server's. Raise TimeoutError if they do not come."""
        count = len(prompts)
        together = Barrier(count)
        with ThreadPoolExecutor(count + len(self.links)) as threads:
            for link in self.links:
                link.send(counting)
            engine, server = (threads.submit(take, link, count, _TIMEOUT_SECONDS) for link in self.links)
            list(threads.map(lambda one: self._stream(one, tokens, together), enumerate(prompts)))
            return engine.result(), server.result()

    def _stream(self, prompt: tuple[int, Sequence[int]], tokens: int, together: Barrier) -> None:
        number, ids = prompt
        body: dict[str, Any] = {"model": self.model, "prompt": ids, "max_tokens": tokens}
        body |= {"stream": True, "ignore_eos": True, "temperature": 0}
        if self.sampling == "mixed":
            body |= mixed(random.Random(number), logprobs=False, stops=False)
        # httpx would take ten times the processor time.
        with closing(HTTPConnection(urlsplit(self.url).netloc, timeout=_TIMEOUT_SECONDS)) as http:
            http.connect()
            together.wait(_TIMEOUT_SECONDS)
            http.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            text = http.getresponse().read()
        if b"data: [DONE]" not in text:
            raise ConnectionError(f"the stream was cut: {text[-256:].decode('utf-8', 'replace')}")


@contextmanager
def served(folder: Path, slots: int, sampling: Sampling) -> Iterator[Served]:
    """Start a server of this model whose processes are profiled; end it behind the block. It takes no drafts,
    because a bare BatchGenerator has none."""
    # Without the options of the machine's owner, which may name a model.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    given = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_HOOKS), str(_ROOT), given)))
    arguments = ("--model", str(folder), "--max-slots", str(slots), "--speculation", "none")
    with Listener(family="AF_UNIX") as listener:
        environment[ADDRESS_VARIABLE] = str(listener.address)
        start = ServerStart((*arguments, "--log-level", "warning"), None, environment)
        with started(start, Console(file=sys.stderr)) as server:
            links = {link.recv(): link for link in (listener.accept(), listener.accept())}
            yield Served(server.url, server.model(None).name, sampling, (links["engine"], links["server"]))
