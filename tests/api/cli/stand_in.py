"""A server that stands in for Penstock, on a port and in threads: what the commands' processes talk to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PIECE_SECONDS = 0.02


@dataclass
class StandIn:
    url: str = ""
    bodies: list[Any] = field(default_factory=list)
    """Bodies of the chat completions that were asked for."""
    hung_up: threading.Event = field(default_factory=threading.Event)
    """A client has left before its answer's end."""


@contextmanager
def standing_in() -> Iterator[StandIn]:
    """Serve: a question `forever` gets an answer without end, any other one `**Hello** you.`"""
    state = StandIn()

    class Handler(_Handler):
        stand_in = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn

    def version_string(self) -> str:
        return "penstock"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._begin("application/json")
            model = {"id": "tiny", "owned_by": "penstock", "max_model_len": 131072}
            self.wfile.write(json.dumps({"data": [model]}).encode())
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.stand_in.bodies.append(body)
        self._begin("text/event-stream")
        if body["messages"][-1]["content"] == "forever":
            self._forever(_delta("word "))
        else:
            self.wfile.write(_delta("**Hello** ") + _delta("you.") + _delta("", "stop") + b"data: [DONE]\n\n")

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()

    def _forever(self, piece: bytes) -> None:
        try:
            while True:
                self.wfile.write(piece)
                time.sleep(_PIECE_SECONDS)
        except OSError:
            self.stand_in.hung_up.set()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def _delta(text: str, reason: str | None = None) -> bytes:
    chunk = {"choices": [{"delta": {"content": text}, "finish_reason": reason}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
