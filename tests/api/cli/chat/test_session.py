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
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from api.cli.chat import session as session_module
from api.cli.chat.conversation import MOST_TOKENS, Conversation
from api.cli.chat.session import Session, history, line_reader
from api.cli.running_server import Address, ListedModel, NoServer, RunningServer
from tests.api.cli.chat.fake_server import SERVER, Answers, EndlessStream, Given, said, sse

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
    said_ = ["hi", "Hello **you**", "more", "Again"]
    assert [message["content"] for message in session.conversation.messages] == said_
    assert [message["content"] for message in answers.bodies[1]["messages"]] == said_[:3]
    assert answers.keys == ["Bearer k", "Bearer k"]


def test_thinking_is_shown() -> None:
    answers = Answers(sse({"reasoning_content": "Let me see."}, {"content": "42"}))
    _, text = shown(answers, "6*7?", EOFError)
    assert text.startswith("Let me see.\n42\n")


def test_a_tool_call_is_shown_and_not_run() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"at": "x"}'}}
    session, text = shown(Answers(sse({"tool_calls": [call]}, reason="tool_calls")), "look", EOFError)
    assert 'tool call (not run): look\n{"at": "x"}\n' in text
    assert session.conversation.messages[1]["tool_calls"][0]["function"]["name"] == "look"


def test_a_server_that_is_gone_in_mid_answer_leaves_the_conversation() -> None:
    """It goes on when the server is back, with what had come; a question without any answer is taken back."""
    lost = httpx.ReadError("reset by peer")
    answers = Answers(
        said("one"), [*said("two and", reason=None), lost], httpx.ConnectError("refused"), said("two")
    )
    session, text = shown(answers, "1?", "2?", "3?", "4?", EOFError)
    assert "the connection to http://127.0.0.1:9 was lost: reset by peer" in text
    assert "no server answers at http://127.0.0.1:9: refused" in text
    kept = ["1?", "one", "2?", "two and", "4?", "two"]
    assert [message["content"] for message in session.conversation.messages] == kept
    assert [len(body["messages"]) for body in answers.bodies] == [1, 3, 5, 5]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((503, b'{"error": {"message": "the queue is full"}}'), "503: the queue is full"),
        ((500, b"<html>" + b"x" * 99_999), "500: Internal Server Error"),
        ([b'data: {"error": {"message": "no engine"}}\n\n'], "no engine"),
        (said("half", reason=None), "closed the connection in mid-answer"),
        ([b"\xff" * 10 + b"\n"], "closed the connection in mid-answer"),
        (httpx.ReadTimeout("slow"), "is silent"),
        (httpx.RemoteProtocolError("bad chunk"), "was lost: bad chunk"),
    ],
)
def test_a_failed_answer_says_why(answer: Given, says: str) -> None:
    session, text = shown(Answers(answer, said("fine")), "one", "two", EOFError)
    assert says in " ".join(text.split())
    assert [message["content"] for message in session.conversation.messages[-2:]] == ["two", "fine"]


def test_text_of_a_model_cannot_steer_the_terminal() -> None:
    call = {"index": 0, "function": {"name": "a\x1b[2J", "arguments": "\x9b2J"}}
    parts: list[dict[str, Any]] = [{"content": "\x1b]0;title\x07 \x1b[31m \ud800"}, {"tool_calls": [call]}]
    _, text = shown(Answers(sse({"reasoning_content": "\x1b[2J"}, *parts)), "?", EOFError)
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
    assert [message["content"] for message in session.conversation.messages] == ["go", "and "] * 2


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_models_are_listed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(where: Address) -> RunningServer:
        return RunningServer(
            where.url, where.key, (ListedModel("tiny"), ListedModel("new")), is_penstock=True
        )

    monkeypatch.setattr(session_module, "find", find)
    answers = Answers(said("x"))
    _, text = shown(answers, "/model", "/model new", "hi", EOFError)
    assert answers.bodies[0]["model"] == "new"
    assert text.startswith("* tiny\n  new\nmodel new\n")


def test_without_a_server_a_command_says_so_and_the_chat_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(where: Address) -> RunningServer:
        raise NoServer("no server answers")

    monkeypatch.setattr(session_module, "find", find)
    _, text = shown(Answers(), "/model", "/quit")
    assert text == "no server answers\n"


def test_commands_change_what_is_sent() -> None:
    answers = Answers(said("a"), said("b"))
    lines = [
        "/system Be brief.",
        "/set seed 7",
        "/set reasoning_effort high",
        "/set top_p 0.5",
        "/set top_p default",
    ]
    _, text = shown(answers, *lines, "hi", "/clear", " /slash", EOFError)
    first, second = answers.bodies
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert (first["seed"], first["reasoning_effort"], "top_p" in first) == (7, "high", False)
    assert [message["content"] for message in second["messages"]] == ["Be brief.", "/slash"]
    assert "seed 7, reasoning_effort high\n" in text


def test_a_setting_that_no_request_has_is_refused() -> None:
    """It would change nothing, and look as if it did."""
    answers = Answers(said("a"))
    _, text = shown(answers, "/set temperatur 3", "/set model tiny", "/set", "hi", EOFError)
    assert text.startswith("no request has a setting 'temperatur': did you mean temperature?\n")
    assert "no request has a setting 'model'" in text
    assert "nothing is set\n" in text
    assert "temperatur" not in answers.bodies[0]
    assert answers.bodies[0]["model"] == "tiny"


@pytest.mark.parametrize(
    ("lines", "kept"), [((), MOST_TOKENS), (("/set max_tokens 9000",), MOST_TOKENS + 50)]
)
def test_an_answer_has_a_bound_unless_the_user_sets_one(lines: tuple[str, ...], kept: int) -> None:
    """The client's own: beside a long prompt the server would refuse one in the body."""
    answers = Answers(said(*["n"] * (MOST_TOKENS + 50)))
    session, text = shown(answers, *lines, "hi", EOFError)
    assert session.conversation.messages[-1]["content"] == "n" * kept
    assert ("cut: the answer has as many tokens as allowed" in text) == (kept == MOST_TOKENS)
    assert ("max_tokens" in answers.bodies[0]) == bool(lines)


def test_a_command_that_there_is_not_is_refused() -> None:
    _, text = shown(Answers(), "/hlep", "/help", EOFError)
    assert text.startswith("no command /hlep: /help lists them")
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_command_is_its_whole_first_word() -> None:
    """Also where a line's end, as of a pasted text, is behind it."""
    _, text = shown(Answers(), "/quitter", "/sets", "/clear\n", "/system\nBe brief.", "/quit now", "unread")
    assert [line[:20] for line in text.splitlines()] == [
        "no command /quitter:",
        "no command /sets: /h",
        "forgotten",
        "system message set",
    ]


def test_a_key_press_completes_commands_models_and_fields() -> None:
    words = Session(SERVER, Conversation("tiny"), Console()).words()
    assert {"/set", "/model tiny", "/model large", "/set temperature "} <= set(words)


# ---- the line that is typed

ENTER, ALT_ENTER, CTRL_C, CTRL_D, UP = "\r", "\x1b\r", "\x03", "\x04", "\x1b[A"


def typed(folder: Path, *lines: str) -> list[str]:
    """Return what each of these keys enter."""
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        read = line_reader(list, {"XDG_CACHE_HOME": str(folder)})
        found = []
        for line in lines:
            keys.send_text(line)
            found.append(read())
        return found


def test_a_question_may_have_several_lines(tmp_path: Path) -> None:
    keys = [f"one{ALT_ENTER}two{ENTER}", f"\x1b[200~one\ntwo\x1b[201~{ENTER}"]
    assert typed(tmp_path, *keys) == ["one\ntwo"] * 2


def test_ctrl_c_and_ctrl_d_are_reported(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        typed(tmp_path, CTRL_C)
    with pytest.raises(EOFError):
        typed(tmp_path, CTRL_D)


def test_earlier_lines_come_back_in_a_later_chat(tmp_path: Path) -> None:
    """From a file that only this user reads."""
    typed(tmp_path, f"first{ENTER}", f"second{ENTER}")
    assert typed(tmp_path, f"{UP}{UP}{ENTER}") == ["first"]
    assert (tmp_path / "penstock" / "chat-history").stat().st_mode & 0o777 == 0o600


def test_a_history_that_cannot_be_written_is_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "penstock").write_text("a file")
    assert isinstance(history(tmp_path / "penstock"), InMemoryHistory)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "chat-history").symlink_to(tmp_path / "elsewhere")
    assert isinstance(history(linked), InMemoryHistory)
    assert not (tmp_path / "elsewhere").exists()


def test_a_value_too_deep_for_json_is_text() -> None:
    deep = "[" * 100_000
    session, _ = shown(Answers(), f"/set stop {deep}", EOFError)
    assert session.conversation.settings == {"stop": deep}
