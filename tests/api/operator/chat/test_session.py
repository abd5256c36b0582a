"""A conversation from line to line: what is sent, what is shown, and what a lost server leaves."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from api.operator.answer import Reply
from api.operator.chat import session as session_module
from api.operator.chat.conversation import Conversation, Turn
from api.operator.chat.session import Session
from api.operator.errors import OperatorError
from api.operator.running_server import Address, ListedModel, NoServer, RunningServer
from tests.api.operator.chat.fake_server import SERVER, Answers, EndlessStream, Given, said, sse

Entered = str | type[BaseException]


class Typed:
    """What the user types."""

    def __init__(self, *lines: Entered) -> None:
        self._lines: Iterator[Entered] = iter(lines)

    def __call__(self) -> str:
        line = next(self._lines)
        if isinstance(line, str):
            return line
        raise line


def shown(answers: Answers, *lines: Entered) -> tuple[Session, str]:
    output = io.StringIO()
    session = Session(SERVER, Conversation("tiny"), Console(file=output, width=80), answers)
    session.run(Typed(*lines))
    return session, output.getvalue()


def test_an_answer_is_shown_with_its_figures_and_kept() -> None:
    answers = Answers(said("Hello ", "**you**"), said("Again"))
    session, text = shown(answers, "hi", "more", EOFError)
    assert "Hello you\n" in text
    assert "5 tokens" in text
    assert "prompt 10, 90% cached" in text
    assert session.conversation.turns == (Turn("hi", Reply("Hello **you**")), Turn("more", Reply("Again")))
    assert [message["content"] for message in answers.bodies[1]["messages"]] == [
        "hi",
        "Hello **you**",
        "more",
    ]
    assert answers.keys == ["Bearer k", "Bearer k"]


def test_thinking_is_folded_until_it_is_asked_for() -> None:
    answers = Answers(sse({"reasoning_content": "Let me see."}, {"content": "42"}))
    _, text = shown(answers, "6*7?", EOFError)
    assert "thought for" in text
    assert "Let me see." not in text
    _, text = shown(
        Answers(sse({"reasoning_content": "Let me see."}, {"content": "42"})), "?", "/thinking", EOFError
    )
    assert text.endswith("Let me see.\n")


def test_a_tool_call_is_shown_and_not_run() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"at": "x"}'}}
    session, text = shown(Answers(sse({"tool_calls": [call]}, reason="tool_calls")), "look", EOFError)
    assert 'tool call (not run): look\n{"at": "x"}\n' in text
    reply = session.conversation.turns[0].reply
    assert reply is not None
    assert reply.calls[0].name == "look"


def test_a_server_that_is_gone_in_mid_answer_leaves_the_conversation() -> None:
    """It goes on when the server is back."""
    lost = httpx.ReadError("reset by peer")
    answers = Answers(
        said("one"), [*said("two and", reason=None), lost], httpx.ConnectError("refused"), said("two")
    )
    session, text = shown(answers, "1?", "2?", "/retry", "/retry", EOFError)
    assert "the connection to http://127.0.0.1:9 was lost: reset by peer" in text
    assert "two and" in text
    assert "no server answers at http://127.0.0.1:9: refused" in text
    assert text.count("/retry asks again") == 2
    assert session.conversation.turns == (Turn("1?", Reply("one")), Turn("2?", Reply("two")))
    assert [len(body["messages"]) for body in answers.bodies] == [1, 3, 3, 3]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((503, b'{"error": {"message": "the queue is full"}}'), "503: the queue is full"),
        ((500, b"<html>" + b"x" * 99_999), "500: Internal Server Error"),
        ([b'data: {"error": {"message": "no engine"}}\n\n'], "no engine"),
        (said("half", reason=None), "closed the connection in mid-answer"),
        ([b"\xff" * 10 + b"\n"], "closed the connection in mid-answer"),
        (httpx.ReadTimeout("slow"), "silent for 10 minutes"),
        (httpx.RemoteProtocolError("bad chunk"), "was lost: bad chunk"),
    ],
)
def test_a_failed_answer_says_why(answer: Given, says: str) -> None:
    session, text = shown(Answers(answer, said("fine")), "one", "two", EOFError)
    assert says in " ".join(text.split())
    assert session.conversation.turns[-1] == Turn("two", Reply("fine"))


def test_text_of_a_model_cannot_steer_the_terminal() -> None:
    call = {"index": 0, "function": {"name": "a\x1b[2J", "arguments": "\x9b2J"}}
    parts: list[dict[str, Any]] = [{"content": "\x1b]0;title\x07 \x1b[31m \ud800"}, {"tool_calls": [call]}]
    _, text = shown(Answers(sse({"reasoning_content": "\x1b[2J"}, *parts)), "?", "/thinking", EOFError)
    assert not set(text) & {"\x1b", "\x07", "\x9b"}
    text.encode()


def test_ctrl_c_stops_the_answer_and_closes_the_connection() -> None:
    """Another one ends the chat; a line entered between them forgives the first."""
    streams = [EndlessStream(said("and ", reason=None)[0], interrupt) for _ in range(2)]
    output = io.StringIO()
    session = Session(SERVER, Conversation("tiny"), Console(file=output, width=80), Answers(*streams))
    assert session.run(Typed("go", "/set", KeyboardInterrupt, "go", KeyboardInterrupt)) is True
    assert [stream.is_closed for stream in streams] == [True, True]
    assert output.getvalue().count("stopped") == 2
    assert session.conversation.turns == (Turn("go", Reply("and ", is_whole=False)),) * 2


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_models_are_listed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(where: Address) -> RunningServer:
        return RunningServer(
            where.url, where.key, (ListedModel("tiny"), ListedModel("new")), is_penstock=True
        )

    monkeypatch.setattr(session_module, "find", find)
    answers = Answers(said("x"))
    session, text = shown(answers, "/model new", "hi", EOFError)
    assert answers.bodies[0]["model"] == "new"
    assert session.models == ["tiny", "new"]
    assert "model new" in text


def test_without_a_server_the_last_list_of_models_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(where: Address) -> RunningServer:
        raise NoServer("no server answers")

    monkeypatch.setattr(session_module, "find", find)
    _, text = shown(Answers(), "/model", EOFError)
    assert text == "no server answers\n* tiny\n  large\n"
    assert issubclass(NoServer, OperatorError)


def test_a_conversation_is_saved_and_goes_on_later(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    _, text = shown(Answers(said("hello")), "hi", f"/save {path}", f"/save {path}", "/quit")
    # A long path is broken where the line ends.
    assert f"/save! {path} overwrites it".replace(" ", "") in "".join(text.split())
    answers = Answers(said("yes"))
    session, _ = shown(answers, f"/load {path}", "still there?", "/quit")
    assert len(answers.bodies[0]["messages"]) == 3
    assert len(session.conversation.turns) == 2
