"""The two files of a batch: requests that are read where they lie, and answers that are appended."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import httpx

from api.cli.errors import OperatorError
from scheduler.prompt.vector_request import ENDPOINTS

ROUTES = (*ENDPOINTS["chat"], *ENDPOINTS["embedding"])
_ANSWER = b'{"id": '
"""The beginning of each line that `append` writes."""


class Line(NamedTuple):
    """One request of the file, without its body: a file may be larger than the memory."""

    custom_id: str
    url: str
    at: int
    """Where its line begins, in bytes."""


def pending(source: BinaryIO, answered: Container[str]) -> list[Line]:
    """Return the requests without an answer. Raise OperatorError, which names the first line that is no
    request: then nothing is sent."""
    if not source.seekable():
        raise OperatorError("a batch reads its requests twice: give it a file, not a pipe")
    found: list[Line] = []
    seen: set[str] = set()
    at = 0
    for number, text in enumerate(source, 1):
        try:
            if text.strip() and (entry := _request(text, seen))["custom_id"] not in answered:
                found.append(Line(entry["custom_id"], entry["url"], at))
        except ValueError as error:
            raise OperatorError(f"line {number} {error}") from error
        at += len(text)
    return found


def _request(text: bytes, seen: set[str]) -> dict[str, Any]:
    """Return a line's request. Raise ValueError, whose text goes on after the line's number."""
    try:
        entry: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    match entry:
        case {"custom_id": str(name)} if name in seen:
            raise ValueError(f"has the custom_id {name!r} of an earlier line")
        case {"custom_id": str(name), "url": str(url), "body": dict(body)}:
            seen.add(name)
        case _:
            raise ValueError("is no request: it needs custom_id, url and body, as OpenAI's batches have them")
    if (method := entry.get("method", "POST")) != "POST" or url not in ROUTES:
        raise ValueError(f"asks {method} {url}; a batch asks POST {', '.join(ROUTES)}")
    if body.get("stream"):
        raise ValueError("asks for a stream; a batch has whole answers")
    return entry


@contextmanager
def answers_file(path: Path) -> Iterator[tuple[BinaryIO, dict[str, int]]]:
    """Yield the file, for `append`, and each answer's status. A line that a killed run left half is cut off.
    Raise OperatorError if it cannot be written, if another run writes it, or if it holds something else."""
    answered: dict[str, int] = {}
    whole = 0
    with ExitStack() as stack:
        try:
            if path.exists() and not path.is_file():
                raise OperatorError(f"{path} is no file")
            file = stack.enter_context(path.open("a+b"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OperatorError(f"another batch writes {path}") from error
        except OSError as error:
            raise OperatorError(f"{path} cannot be written: {error.strerror or error}") from error
        file.seek(0)
        for number, text in enumerate(file, 1):
            try:
                if text.endswith(b"\n"):
                    entry = json.loads(text)
                    answered[entry["custom_id"]] = (entry["response"] or {}).get("status_code", 0)
                    whole += len(text)
                elif not text.startswith(_ANSWER[: len(text)]):
                    raise ValueError
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise OperatorError(f"{path} has something else than answers in line {number}") from error
        file.truncate(whole)
        yield file, answered
        with suppress(OSError):  # A line that found no room: the file's own close is silent then.
            file.close()


def append(file: BinaryIO, line: Line, answer: httpx.Response) -> None:
    """Write the line of an answer, as OpenAI's. Raise OSError if there is no room for it."""
    try:
        body = answer.json()
    except ValueError:
        body = {"error": {"message": answer.text}}
    request_id = answer.headers.get("x-request-id")
    response = {"status_code": answer.status_code, "request_id": request_id, "body": body}
    entry = {"id": request_id, "custom_id": line.custom_id, "response": response, "error": None}
    file.write(json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    file.flush()
