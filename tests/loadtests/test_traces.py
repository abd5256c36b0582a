"""Recorded traces, read into sessions for replay; invalid ones are named by file and line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from loadtests.prompts import Prompts
from loadtests.scenario import Replay, ScenarioError
from loadtests.traces import RecordedSession, read


def replay(path: Path, text: str | bytes, format: str, **settings: Any) -> list[RecordedSession]:
    path = path / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    mark = settings.pop("mark", "")
    plan = Replay.model_validate({"file": str(path), "format": format, **settings})
    return read(plan, Prompts("salt", 1.0), mark)


def lines(*documents: dict[str, Any]) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


def mooncake(at: float, length: int, ids: list[int], answer: int = 5) -> dict[str, Any]:
    return {"timestamp": at, "input_length": length, "output_length": answer, "hash_ids": ids}


def words(session: RecordedSession) -> list[str]:
    return session.turns[0].messages[0]["content"].split(" ")


def test_equal_hash_ids_are_equal_blocks_of_text(tmp_path: Path) -> None:
    """Exactly, at the recorded lengths and times; tokens beyond the ids are the request's own."""
    text = lines(
        mooncake(2000, 1300, [7, 8, 9]), mooncake(1000, 1024, [7, 8]), mooncake(5000, 1100, [7]),
        mooncake(5000, 1100, [7], answer=0),
    )  # fmt: skip
    first, second, third, fourth = replay(tmp_path, text, "mooncake", speed=2.0)
    assert [one.start_seconds for one in (first, second, third, fourth)] == [0.0, 0.5, 2.0, 2.0]
    assert [len(words(one)) for one in (first, second, third)] == [1024, 1300, 1100]
    assert words(first) == words(second)[:1024]
    assert words(third)[:512] == words(first)[:512]
    assert words(third)[512:520] != words(first)[512:520]
    assert words(third)[512:520] != words(fourth)[512:520]
    assert [one.turns[0].max_tokens for one in (third, fourth)] == [5, 1]
    assert third.turns[0].exact


def test_a_scaled_trace_shares_what_it_shared(tmp_path: Path) -> None:
    """A tenth of the length, a tenth of each block."""
    text = lines(mooncake(0, 5120, list(range(10)), 80), mooncake(0, 5120, [*range(5), 20, 21, 22, 23, 24]))
    a, b = replay(tmp_path, text, "mooncake", token_scale=0.1)
    assert len(words(a)) == len(words(b)) == pytest.approx(512, abs=10)
    half = len(words(a)) // 2
    assert words(a)[:half] == words(b)[:half]
    assert words(a)[half : half + 3] != words(b)[half : half + 3]
    assert a.turns[0].max_tokens == 8


def said(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": who, "value": value} for who, value in turns]}


def test_sharegpt_conversations_are_sessions_of_human_turns(tmp_path: Path) -> None:
    """With the lengths of the recorded answers; answers to nothing and questions without one are left out."""
    text = json.dumps(
        [
            said(("system", "be brief"), ("human", "one"), ("human", "two"), ("gpt", "a" * 40)),
            said(("gpt", "hello"), ("human", "hi"), ("gpt", ""), ("user", "more"), ("assistant", "b" * 8)),
            said(("human", "nobody answered")),
        ]
    )
    first, second = replay(tmp_path, text, "sharegpt")
    assert first.start_seconds is None
    assert not first.whole
    assert first.turns[0].messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo"},
    )
    assert [turn.max_tokens for turn in first.turns] == [10]
    assert [turn.messages[0]["content"] for turn in second.turns] == ["hi", "more"]
    assert [turn.max_tokens for turn in second.turns] == [1, 2]


def test_openai_logs_are_sent_as_they_were(tmp_path: Path) -> None:
    """Whole histories, gaps from the times, tool results as user messages; sessions by their names."""
    system = {"role": "developer", "content": "be brief"}
    ask = {"role": "user", "content": [{"type": "text", "text": "read "}, {"type": "text", "text": "it"}]}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "the file"}
    text = lines(
        {"messages": [ask]},
        {"time": 103.0, "session": "b", "messages": [ask], "max_tokens": 9, "model": "m"},
        {"time": 100.0, "session": "a", "messages": [system, ask]},
        {"time": 104.0, "session": "a", "messages": [system, ask, call, result]},
        {"time": 102.0, "session": "a", "messages": [ask]},
    )
    timeless, a, b = replay(tmp_path, text, "openai", speed=2.0)
    assert [one.id for one in (timeless, a, b)] == ["line-1", "a", "b"]
    assert [one.start_seconds for one in (timeless, a, b)] == [None, 0.0, 1.5]
    assert [turn.gap_seconds for turn in a.turns] == [0.0, 2.0, 0.0]
    assert a.turns[1].messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "the file"},
    )
    assert all(one.whole for one in (timeless, a, b))
    assert [(b.turns[0].max_tokens, b.turns[0].exact), (a.turns[0].max_tokens, a.turns[0].exact)] == [
        (9, True),
        (256, False),
    ]


@pytest.mark.parametrize("format", ["sharegpt", "openai"])
def test_recorded_texts_can_be_marked_and_scaled(tmp_path: Path, format: str) -> None:
    """A mark before the first words only; fewer words, or the same again."""
    value = "one two three four"
    text = (
        json.dumps([said(("human", value), ("gpt", "yes"), ("human", value), ("gpt", "yes"))])
        if format == "sharegpt"
        else lines({"messages": [{"role": "user", "content": value}] * 2})
    )
    for scale, resized in ((0.5, "one two"), (1.5, value + " one two"), (1.0, value)):
        (session,) = replay(tmp_path, text, format, token_scale=scale, mark="fresh words")
        contents = [message["content"] for turn in session.turns for message in turn.messages]
        assert contents == ["fresh words\n" + resized, resized]


@pytest.mark.parametrize(
    ("format", "text", "said_"),
    [
        ("mooncake", lines(mooncake(0, 5, [])) + "\n{", r"trace:3: "),
        ("mooncake", '{"timestamp": 0}', r"trace:1: .*input_length"),
        ("mooncake", lines(mooncake(0, 0, [])), r"trace:1: .*>= 1.*input_length"),
        ("mooncake", b'{"timestamp": "\xff"}', r"trace:1: "),
        ("mooncake", "\n", r"trace: there is no request in it"),
        ("openai", lines({"messages": []}), r"trace:1: .*messages"),
        ("openai", lines({"messages": [{"role": "robot"}]}), r"trace:1: .*robot"),
        (
            "openai",
            lines({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            r"trace:1: .*image_url",
        ),
        ("openai", '{"messages": [{"role": "user"}], "time": "noon"}', r"trace:1: .*time"),
        ("sharegpt", '[\n{"conversations": []},\n{', r"trace:3: "),
        ("sharegpt", b'[\n"\xff"]', r"trace:"),
        ("sharegpt", json.dumps([said(("somebody", "hi"))]), r"trace: .*somebody.*\$\[0\]"),
        ("sharegpt", json.dumps([said(("human", "hi"))]), r"trace: there is no request in it"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, format: str, text: str | bytes, said_: str) -> None:
    """By file, and line or place."""
    with pytest.raises(ScenarioError, match=said_) as raised:
        replay(tmp_path, text, format)
    assert str(raised.value).startswith(str(tmp_path))


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the system's error message."""
    plan = Replay(file=str(tmp_path / "no.jsonl"), format="openai")
    with pytest.raises(ScenarioError, match=re.escape("no.jsonl: No such file")):
        read(plan, Prompts("salt", 1.0))
