"""A server on this device: how it starts, what it reports about itself, and streams whose engine is
killed."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier

import httpx
from rich.console import Console

from api.cli.event_lines import EventLines
from api.cli.process_table import Process, processes
from api.cli.running_server import RunningServer
from api.cli.started_server import ServerStart, started
from loadtests.chaos.strikes import Strike, strike
from loadtests.chaos.victim import python_path
from loadtests.device.finding import Figure, Finding, attempt
from scheduler.shared.link_pair import link_pair

_TOKENS = 200
_TIMEOUT_SECONDS = 120.0
_LEAST_BUFFER_BYTES = 200 << 10
"""About what Linux gives a socket by default."""
_DESCRIBED = ("fallbacks", "float32", "weights_bytes")
"""Fields of `/v1/models` about how the model is computed."""


@dataclass(slots=True)
class _Answer:
    pieces: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    longest_gap_seconds: float = 0.0


def findings(streams: int) -> Iterator[Finding]:
    """Start a server of the embedded model in float32, all else as `penstock serve` chooses it. Its engine
    can be made to fail from inside (`chaos/saboteur`)."""
    yield attempt("link buffers", _buffers)
    before = time.perf_counter()
    # Without the options of the machine's owner, which may name a model.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment["PYTHONPATH"] = python_path(sabotage=True)
    options = ("--log-level", "warning", "--weights-dtype", "float32", "--max-slots", str(streams))
    arguments = ("--model", "embedded", *options)
    with started(ServerStart(arguments, None, environment), Console(file=sys.stderr)) as server:
        yield Finding("start", "measured", {"seconds": round(time.perf_counter() - before, 2)})
        yield attempt("what it says of itself", lambda: _described(server))
        for cause, how in (("a death", Strike.KILL), ("memory that ran out", Strike.MEMORY)):
            name = f"{cause} under {streams} streams"
            yield attempt(name, lambda: _death(name, server, streams, how))  # noqa: B023  # Called at once.
        yield _awake()  # Sleep is held off for a minute after the last answer.


def _buffers() -> Finding:
    """A step must not wait for a server that pauses: macOS's own buffers hold three steps."""
    ours, theirs = link_pair()
    with ours, theirs:
        sends = min(end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for end in (ours, theirs))
        receives = min(end.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for end in (ours, theirs))
    enough = min(sends, receives) >= _LEAST_BUFFER_BYTES
    figures: dict[str, Figure] = {"send_bytes": sends, "receive_bytes": receives}
    return Finding(
        "link buffers", "right" if enough else "wrong", figures, "" if enough else "they are small"
    )


def _awake() -> Finding:
    """The server holds off a Mac's idle sleep; elsewhere nothing has to."""
    name = "idle sleep is held off"
    if sys.platform == "darwin":
        held = any(one.command.startswith("caffeinate") for one in _below())
        return Finding(name, "right" if held else "wrong", detail="" if held else "no caffeinate runs")
    else:
        return Finding(name, "measured", {"system": sys.platform}, "macOS only")


def _described(server: RunningServer) -> Finding:
    answer = httpx.get(f"{server.url}/v1/models", timeout=_TIMEOUT_SECONDS).raise_for_status().json()
    (model, *_) = answer["data"]
    figures: dict[str, Figure] = {name: str(model[name]) for name in _DESCRIBED if name in model}
    return Finding("what it says of itself", "measured", figures)


def _death(name: str, server: RunningServer, streams: int, how: Strike) -> Finding:
    """Each stream must end with the text that it has undisturbed; half of them are sampled."""
    undisturbed = _streams(server, streams, lambda: None)
    killed = _streams(server, streams, lambda: strike(_engine().pid, how))
    pairs = zip(killed, undisturbed, strict=True)
    same = sum("".join(one.pieces) == "".join(other.pieces) for one, other in pairs)
    ended = sum(one.finish_reason is not None for one in killed)
    figures: dict[str, Figure] = {
        "streams": streams,
        "ended": ended,
        "as_undisturbed": same,
        "longest_gap_seconds": round(max(one.longest_gap_seconds for one in killed), 2),
        "undisturbed_gap_seconds": round(max(one.longest_gap_seconds for one in undisturbed), 2),
    }
    detail = "" if same == ended == streams else "an answer was lost, or is another one"
    return Finding(name, "wrong" if detail else "right", figures, detail)


def _streams(server: RunningServer, count: int, in_the_middle: Callable[[], None]) -> Sequence[_Answer]:
    begun = Barrier(count, action=in_the_middle)
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda number: _answer(server, number, begun), range(count)))


def _answer(server: RunningServer, number: int, begun: Barrier) -> _Answer:
    body = {
        "prompt": f"agent {number} " * (number + 3),
        "max_tokens": _TOKENS,
        "ignore_eos": True,
        "stream": True,
        "seed": number,
        "temperature": 0.8 if number % 2 else 0.0,
    }
    found, last, events = _Answer(), None, EventLines()
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=_TIMEOUT_SECONDS) as response:
        response.raise_for_status()
        for payload in (payload for data in response.iter_bytes() for payload in events.data(data)):
            if payload == b"[DONE]":
                continue
            (choice,) = json.loads(payload)["choices"]
            found.finish_reason = choice["finish_reason"]
            if not (text := choice["text"]):
                continue
            now = time.perf_counter()
            found.longest_gap_seconds = max(found.longest_gap_seconds, now - (last or now))
            last = now
            found.pieces.append(text)
            if len(found.pieces) == 1:  # On a busy machine several tokens are one piece.
                begun.wait(_TIMEOUT_SECONDS)
    return found


def _engine() -> Process:
    (engine,) = (one for one in _below() if "scheduler.engine" in one.command)
    return engine


def _below() -> Sequence[Process]:
    """Return the processes that this one has started, and those that they have."""
    all_of_them = processes()
    ours = {os.getpid()}
    while more := {one.pid for one in all_of_them if one.parent in ours} - ours:
        ours |= more
    return [one for one in all_of_them if one.pid in ours]
