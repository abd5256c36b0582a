"""Conversations as files: what is written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.operator.answer import Call, Reply
from api.operator.chat.conversation import Conversation, Turn
from api.operator.chat.saved import NotSaved, as_json, as_markdown, load, save

TALK = Conversation(
    "tiny",
    "Be brief.",
    (
        Turn("hello", Reply("**hi**", "hm")),
        Turn("look", Reply("", "", (Call("c1", "look", '{"a": 1}'),), is_whole=False)),
        Turn("gone?"),
    ),
    {"temperature": 0.2, "seed": 7, "reasoning_effort": "low"},
)


def test_json_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = save(TALK, str(tmp_path / "talk.json"), overwrite=False)
    assert load(str(path)) == TALK
    assert json.loads(path.read_text())["messages"] == TALK.messages()


def test_markdown_has_all_that_was_said() -> None:
    text = as_markdown(TALK)
    for part in (
        "# Conversation with tiny",
        "Be brief.",
        "**hi**",
        "<details>",
        "`look`",
        '{"a": 1}',
        "gone?",
    ):
        assert part in text
    assert "not complete" in text


def test_a_file_is_overwritten_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "talk.md"
    path.write_text("mine")
    with pytest.raises(NotSaved, match="/save!"):
        save(TALK, str(path), overwrite=False)
    assert path.read_text() == "mine"
    save(TALK, str(path), overwrite=True)
    assert path.read_text() == as_markdown(TALK)
    assert [one.name for one in tmp_path.iterdir()] == ["talk.md"]


@pytest.mark.parametrize(
    ("name", "says"),
    [("talk.txt", "must end in .md or .json"), ("talk", "must end"), ("no/such/talk.md", "cannot write")],
)
def test_a_name_that_cannot_be_written(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(NotSaved, match=says):
        save(TALK, str(tmp_path / name), overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_lone_surrogates_of_a_model_can_be_saved(tmp_path: Path) -> None:
    talk = Conversation("tiny", turns=(Turn("?", Reply("\ud800")),))
    for name in ("talk.md", "talk.json"):
        assert save(talk, str(tmp_path / name), overwrite=False).is_file()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"messages": []}',
        '{"penstock_chat": 2}',
        as_json(TALK).replace('"hello"', "3"),
        as_json(TALK).replace('"seed": 7', '"heat": 7'),
        as_json(TALK).replace('"seed": 7', '"seed": -7'),
        as_json(TALK).replace('"turns": [', '"turns": [null,'),
    ],
)
def test_another_file_is_no_conversation(tmp_path: Path, content: str) -> None:
    path = tmp_path / "talk.json"
    path.write_text(content)
    with pytest.raises(NotSaved, match="not"):
        load(str(path))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(NotSaved, match="cannot read /no/such"):
        load("/no/such.json")


@given(st.binary(max_size=200))
def test_no_file_breaks_the_loading(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    with pytest.raises(NotSaved):
        load(str(path))
