"""The files of a batch: what is sent, in which order, and what a killed run has left."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.cli.batch.lines import Line, answers_file, append, pending
from api.cli.errors import OperatorError


def request(name: str, content: str = "hi", url: str = "/v1/chat/completions", **more: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": content}], **more}
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}).encode() + b"\n"


def test_requests_go_in_the_order_of_the_file() -> None:
    source = io.BytesIO(request("1") + request("3") + b"\n" + request("2") + request("4"))
    lines = pending(source, set())
    assert [line.custom_id for line in lines] == ["1", "3", "2", "4"]
    starts = [source.getvalue()[line.at :].partition(b'"custom_id": ')[2][:3] for line in lines]
    assert starts == [b'"1"', b'"3"', b'"2"', b'"4"'], "where each lies in the file"
    assert [line.custom_id for line in pending(io.BytesIO(source.getvalue()), {"1", "4"})] == ["3", "2"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"{\n", "line 2 is not JSON"),
        (b"\xff\xfe\n", "line 2 is not JSON"),
        (b'{"custom_id": 1}\n', "line 2 is no request: it needs custom_id, url and body"),
        (request("b", url="/v1/files"), "line 2 asks POST /v1/files"),
        (request("b", stream=True), "line 2 asks for a stream"),
        (request("a"), "line 2 has the custom_id 'a' of an earlier line"),
    ],
)
def test_nothing_is_sent_of_a_file_with_a_fault(line: bytes, fault: str) -> None:
    with pytest.raises(OperatorError, match=re.escape(fault)):
        pending(io.BytesIO(request("a") + line), set())


@given(data=st.data(), names=st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=1, max_size=5))
def test_killed_at_any_byte_each_request_is_answered_once(
    data: st.DataObject, names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("batch") / "out.jsonl"

    def answer(text: str) -> dict[str, int]:
        with answers_file(path) as (file, answered):
            for name in names:
                if name not in answered:
                    append(file, Line(name, "", 0), httpx.Response(200, json={"text": text}))
        return answered

    assert not answer("é\n")
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    answered = answer("again")
    entries = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [entry["custom_id"] for entry in entries] == names
    assert [entry["response"]["body"]["text"] for entry in entries] == ["é\n"] * len(answered) + ["again"] * (
        len(names) - len(answered)
    )


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("text", [request("a").rstrip(b"\n"), b"notes", b'{"id": 1}\nx', b"[]"])
def test_a_file_of_something_else_is_left_as_it_is(text: bytes, end: bytes, tmp_path: Path) -> None:
    """Such as the requests, which somebody has given as both files."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(text + end)
    with pytest.raises(OperatorError, match="something else than answers"), answers_file(path):
        pass
    assert path.read_bytes() == text + end


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(OperatorError, match="cannot be written: No such file"),
        answers_file(tmp_path / "a" / "b"),
    ):
        pass


def test_a_file_of_answers_belongs_to_one_run(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with answers_file(path), pytest.raises(OperatorError, match="another batch writes"), answers_file(path):
        pass
