"""A Hugging Face hub on the loopback: what huggingface_hub and `penstock pull` ask of the real one.

`/api/models/ID/revision/REV` and `/ID/resolve/REV/FILE` with HEAD and ranges. It cuts connections, damages
files and refuses, as a test says.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.model_files import COMMIT

_LARGE = (".safetensors", "tokenizer.json")
_PREFIX = "/api/models/"


@dataclass
class FakeHub:
    """`files` of the one model `name`; `token`: without it the model is gated."""

    files: dict[str, bytes]
    name: str = "owner/small"
    commit: str = COMMIT
    token: str = ""
    cut_after: dict[str, int] = field(default_factory=dict)
    """By file: the connection ends after these bytes, once."""
    stalled_after: dict[str, int] = field(default_factory=dict)
    """By file: nothing comes after these bytes, until the client leaves."""
    damaged: dict[str, int] = field(default_factory=dict)
    """By file: how many answers have a wrong byte."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and range of each request."""
    url: str = ""
    stalls: threading.Event = field(default_factory=threading.Event)
    """A stalled answer has been sent."""

    def etag(self, file: str) -> str:
        content = self.files[file]
        if file.endswith(_LARGE):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()

    def info(self) -> dict[str, Any]:
        siblings = []
        for file, content in self.files.items():
            entry: dict[str, Any] = {"rfilename": file, "size": len(content), "blobId": self.etag(file)}
            if file.endswith(_LARGE):
                entry["lfs"] = {"sha256": self.etag(file), "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        return {
            "_id": "1",
            "id": self.name,
            "modelId": self.name,
            "sha": self.commit,
            "private": False,
            "siblings": siblings,
            "tags": [],
            "downloads": 0,
        }

    def tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": one["rfilename"], "size": one["size"], "oid": one["blobId"]}
            | ({"lfs": {**one["lfs"], "oid": one["lfs"]["sha256"]}} if "lfs" in one else {})
            for one in self.info()["siblings"]
        ]


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve on a free port until the end."""

    class Handler(_Handler):
        def __init__(self, *arguments: Any) -> None:
            self.hub = hub
            super().__init__(*arguments)

    server = _QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave when they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        """Tests read `asked`."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        self.hub.asked.append((self.command, path, self.headers.get("range", "")))
        known = (f"{_PREFIX}{self.hub.name}", f"/{self.hub.name}/")
        if not path.startswith(known):
            self._refuse(404, "RepoNotFound")
        elif path.startswith(_PREFIX):
            self._describe(path.removeprefix(known[0]))
        else:
            self._file(*path.removeprefix(known[1]).split("/", 2)[1:], body=body)

    def _describe(self, rest: str) -> None:
        if not rest or rest.endswith(("/main", self.hub.commit)):
            self._json(self.hub.tree() if rest.startswith("/tree") else self.hub.info())
        else:
            self._refuse(404, "RevisionNotFound")

    def _file(self, revision: str, file: str, *, body: bool) -> None:
        if self.hub.token and self.headers.get("authorization") != f"Bearer {self.hub.token}":
            self._refuse(401, "GatedRepo")
        elif file not in self.hub.files:
            self._refuse(404, "EntryNotFound")
        else:
            self._send(file, body)

    def _send(self, file: str, body: bool) -> None:
        content, start = self._content(file), 0
        if wanted := self.headers.get("range"):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("etag", f'"{self.hub.etag(file)}"')
        self.send_header("x-repo-commit", self.hub.commit)
        self.send_header("content-length", str(len(content) - start))
        if start:
            self.send_header("content-range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if body:
            stalled = self.hub.stalled_after.get(file)
            cut = self.hub.cut_after.pop(file, stalled)
            self.wfile.write(content[start:cut])
            if stalled is not None:
                self.hub.stalls.set()
                with suppress(OSError):
                    self.connection.recv(1)
            if cut is not None:
                self.close_connection = True

    def _content(self, file: str) -> bytes:
        content = self.hub.files[file]
        if self.command == "GET" and self.hub.damaged.get(file, 0) > 0:
            self.hub.damaged[file] -= 1
            return content[:-1] + bytes([content[-1] ^ 1])
        return content

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("x-error-code", code)
        self.send_header("content-length", "0")
        self.end_headers()

    def _json(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
