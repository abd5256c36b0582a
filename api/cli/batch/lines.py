"""The two files of a batch: requests that are read where they lie, and answers that are appended."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from api.cli.errors import OperatorError

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank")
_PROMPTS = ("messages", "prompt", "input", "query")
_HEADS = (1 << 10, 1 << 12, 1 << 14, 1 << 16)
"""Characters of a prompt of which a common beginning counts."""
_MOST_FAULTS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One request of the file, without its body: a file may be larger than the memory."""

    custom_id: str
    url: str
    at: int
    """Where its line begins, in bytes."""


def pending(source: BinaryIO, answered: set[str]) -> list[Line]:
    """Return the requests without an answer, those with a common beginning one after another. Raise
    OperatorError, which names the first lines that are no requests: then nothing is sent."""
    found: list[tuple[tuple[int, ...], Line]] = []
    heads: dict[str, int] = {}
    seen: set[str] = set()
    faults: list[str] = []
    at = 0
    for number, text in enumerate(source, 1):
        try:
            if text.strip():
                entry = _request(text, seen)
                if entry["custom_id"] not in answered:
                    line = Line(entry["custom_id"], entry["url"], at)
                    found.append((_family(entry, heads), line))
        except ValueError as error:
            faults.append(f"line {number} {error}")
            if len(faults) == _MOST_FAULTS:
                break
        at += len(text)
    if faults:
        raise OperatorError("; ".join(faults))
    return [line for _, line in sorted(found, key=lambda pair: pair[0])]


def _request(text: bytes, seen: set[str]) -> dict[str, Any]:
    """Return a line's request. Raise ValueError, whose text goes on after the line's number."""
    try:
        entry: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    match entry:
        case {"custom_id": str(name), "url": str(url), "body": dict(body)}:
            pass
        case _:
            raise ValueError("is no request: it needs custom_id, url and body, as OpenAI's batches have them")
    if url not in ROUTES:
        raise ValueError(f"asks {url}; a batch asks {', '.join(ROUTES)}")
    if entry.get("method", "POST") != "POST":
        raise ValueError("has another method than POST")
    if body.get("stream"):
        raise ValueError("asks for a stream; a batch has whole answers")
    if name in seen:
        raise ValueError(f"has the custom_id {name!r} of an earlier line")
    seen.add(name)
    return entry


def _family(entry: Mapping[str, Any], heads: dict[str, int]) -> tuple[int, ...]:
    """Return a key that sorts requests with a common beginning together, in the order in which the beginnings
    first come. `heads` numbers them by their hashes."""
    body = entry["body"]
    prompt = next((body[name] for name in _PROMPTS if name in body), "")
    text = json.dumps([entry["url"], body.get("model"), body.get("tools"), prompt])
    return tuple(heads.setdefault(f"{most} {hash(text[:most])}", len(heads)) for most in _HEADS)


class Answers:
    """The answers' file, held by one run. A line that a killed run has left half is cut off."""

    def __init__(self, path: Path) -> None:
        """Raise OperatorError if another run writes it, or if it holds something else."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with ExitStack() as undo:
            self._file = undo.enter_context(os.fdopen(descriptor, "r+b"))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise OperatorError(f"another batch writes {path}") from error
            self.answered = set(self._read(path))
            self._file.seek(0, os.SEEK_END)
            undo.pop_all()

    def _read(self, path: Path) -> Iterator[str]:
        whole = 0
        for number, text in enumerate(self._file, 1):
            if not text.endswith(b"\n"):
                break
            try:
                yield json.loads(text)["custom_id"]
            except (ValueError, LookupError, TypeError) as error:
                raise OperatorError(f"{path} has something else than answers in line {number}") from error
            whole += len(text)
        self._file.truncate(whole)

    def append(self, answer: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def body_of(source: BinaryIO, line: Line) -> dict[str, Any]:
    """Return a request's body."""
    source.seek(line.at)
    body: dict[str, Any] = json.loads(source.readline())["body"]
    return body
