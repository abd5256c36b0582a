"""The files of a batch: what is sent, in which order, and what a killed run has left."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.cli.batch.lines import Answers, body_of, pending
from api.cli.errors import OperatorError


def request(name: str, content: str = "hi", url: str = "/v1/chat/completions", **more: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": content}], **more}
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}).encode() + b"\n"


def test_requests_with_a_common_beginning_go_together() -> None:
    """In the order in which the beginnings first come, and within one in the file's."""
    first, second = "a" * 5000, "b" * 5000
    source = io.BytesIO(
        request("1", first + "x") + request("2", second) + b"\n" + request("3", first) + request("4", second)
    )
    lines = pending(source, set())
    assert [line.custom_id for line in lines] == ["1", "3", "2", "4"]
    assert [body_of(source, line)["messages"][0]["content"][0] for line in lines] == ["a", "a", "b", "b"]
    assert [line.custom_id for line in pending(io.BytesIO(source.getvalue()), {"1", "4"})] == ["2", "3"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"{\n", "line 2 is not JSON"),
        (b"\xff\xfe\n", "line 2 is not JSON"),
        (b'{"custom_id": 1}\n', "line 2 is no request: it needs custom_id, url and body"),
        (request("b", url="/v1/files"), "line 2 asks /v1/files"),
        (request("b", stream=True), "line 2 asks for a stream"),
        (request("a"), "line 2 has the custom_id 'a' of an earlier line"),
    ],
)
def test_nothing_is_sent_of_a_file_with_a_fault(line: bytes, fault: str) -> None:
    with pytest.raises(OperatorError, match=fault):
        pending(io.BytesIO(request("a") + line), set())


@given(data=st.data(), names=st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=1, max_size=5))
def test_killed_at_any_byte_each_request_is_answered_once(
    data: st.DataObject, names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("batch") / "out.jsonl"
    answers = Answers(path)
    for name in names:
        answers.append({"custom_id": name, "response": {"body": "é\n"}})
    answers.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    answers = Answers(path)
    for name in names:
        if name not in answers.answered:
            answers.append({"custom_id": name, "response": {"body": "again"}})
    answers.close()
    assert [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()] == names


def test_a_file_of_answers_belongs_to_one_run(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    answers = Answers(path)
    with pytest.raises(OperatorError, match="another batch writes"):
        Answers(path)
    answers.close()
    path.write_text("notes\n")
    with pytest.raises(OperatorError, match="something else than answers in line 1"):
        Answers(path)
    assert path.read_text() == "notes\n"
