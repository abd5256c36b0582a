"""A question through a pipe: only its answer is on standard output; the server's stream is understood."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import TextIO

import click
import httpx
import pytest
import trio.testing
from trio.testing import trio_test

from api.cli.answer import Answer
from api.cli.asking import ask
from api.cli.chat.conversation import Conversation
from api.cli.chat.pipe import answer_once, begins, question
from api.cli.errors import OperatorError
from api.cli.running_server import read_listing
from tests.api.cli.chat.fake_server import SERVER, Answers, EndlessStream, Given, said, sse
from tests.api.client import client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

ASKED = Conversation("tiny").ask("hi")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("words", "stdin", "asked"),
    [
        ("", io.StringIO("what?\n"), "what?"),
        ("what is this?", io.StringIO("a text\n"), "what is this?\n\na text"),
        ("what?", Terminal("unread"), "what?"),
        ("what?", io.StringIO(""), "what?"),
    ],
)
def test_the_question_is_argument_and_input(words: str, stdin: io.StringIO, asked: str) -> None:
    assert question(words, stdin) == asked


@pytest.mark.parametrize("stdin", [io.StringIO(" \n"), io.StringIO("x" * ((16 << 20) + 1))])
def test_no_question_and_a_far_too_long_one_are_refused(stdin: io.StringIO) -> None:
    with pytest.raises(click.UsageError):
        question("", stdin)


def test_an_empty_pipe_beside_a_question_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`git diff | penstock chat "what does this change?"` where nothing is changed; the null device says that
    there is no input."""
    reading, writing = os.pipe()
    os.close(writing)
    (tmp_path / "empty").touch()
    for given, noted in ((reading, True), (tmp_path / "empty", True), (os.devnull, False)):
        with open(given) as stdin:
            assert question("what?", stdin) == "what?"
        assert ("standard input is empty" in capsys.readouterr().err) is noted


def test_input_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xff\xfe")
    with path.open(encoding="utf-8") as file, pytest.raises(click.UsageError, match="not text"):
        question("", file)


def test_half_characters_of_the_c_locale_are_refused() -> None:
    """Python reads bytes that are not UTF-8 as these there, and no server takes them."""
    for words, stdin, what in (("", "caf\udce9", "standard input"), ("caf\udce9", "", "the question")):
        with pytest.raises(click.UsageError, match=rf"{what} is not text \(UTF-8\)"):
            question(words, io.StringIO(stdin))


def test_a_silent_pipe_beside_a_question_is_waited_for_not_without_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A build may be silent for minutes before it says what failed."""

    def silent(stdin: TextIO, seconds: float) -> bool:
        return False

    assert question("what?", io.StringIO("a text"), silent) == "what?\n\na text"
    assert "waiting for standard input" in capsys.readouterr().err
    assert question("what?", io.StringIO("a text")) == "what?\n\na text"
    assert question("", io.StringIO("a text"), silent) == "a text"
    assert capsys.readouterr().err == "", "without an argument standard input is the question"


def test_a_pipe_has_begun_when_it_speaks_or_is_closed(tmp_path: Path) -> None:
    """A file, and what is no file at all, have begun."""
    read, write = os.pipe()
    with os.fdopen(read) as pipe:
        assert not begins(pipe, 0.0)
        os.write(write, b"x")
        assert begins(pipe, 0.0)
        os.read(read, 1)
        assert not begins(pipe, 0.0)
        os.close(write)
        assert begins(pipe, 0.0)
    with (tmp_path / "empty").open("w+") as file:
        assert begins(file, 0.0)
    assert begins(io.StringIO(), 0.0)


def answered(answer: Given, output: io.StringIO | None = None) -> str:
    output = output or io.StringIO()
    answer_once(SERVER.address, ASKED, output, Answers(answer))
    return output.getvalue()


def test_only_the_answer_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """As the model wrote it, with a line's end; on a terminal nothing in it steers."""
    pieces = sse({"reasoning_content": "hm"}, {"content": "**a**\x1b[2J"}, {"content": " b"}, reason="length")
    assert answered(pieces) == "**a**\x1b[2J b\n"
    assert capsys.readouterr().err == "penstock: the answer is cut: it has as many tokens as allowed\n"
    assert answered(said("a\n")) == "a\n"
    assert "\x1b" not in answered(pieces, Terminal())


def test_tool_calls_are_named_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    call = {"index": 0, "function": {"name": "look", "arguments": "{}"}}
    assert answered(sse({"tool_calls": [call]}, reason="tool_calls")) == ""
    assert "tool call (not run): look {}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "output", "says"),
    [
        ((503, b'{"error": {"message": "full"}}'), "", "503: full"),
        ([*said("half", reason=None), httpx.ReadError("reset")], "half\n", "was lost: reset"),
        (httpx.ConnectError("refused"), "", "no server answers"),
    ],
)
def test_a_failure_is_an_error_of_the_command(answer: Given, output: str, says: str) -> None:
    written = io.StringIO()
    with pytest.raises(OperatorError, match=says):
        answer_once(SERVER.address, ASKED, written, Answers(answer))
    assert written.getvalue() == output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_quietly(number: int, code: int) -> None:
    """And closes the connection, so that the server ends the request."""
    stream = EndlessStream(said("half", reason=None)[0], lambda: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as caught:
        answered(stream)
    assert caught.value.code == code
    assert stream.is_closed


@trio_test
async def test_the_servers_own_stream_is_understood(autojump_clock: trio.testing.MockClock) -> None:
    """Its list of models too."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        server = read_listing(SERVER.address, await client.get("/v1/models"))
        assert server.is_penstock
        body = ASKED | {"model": server.model(None).name, "max_tokens": 5}
        answer, changes = Answer(trio.current_time()), list[int]()
        await ask(client, server.address, body, answer, lambda: changes.append(len(answer.text)))
    assert (answer.ended, answer.failure, answer.remark() is None) == ("length", None, False)
    assert answer.usage is not None
    assert answer.usage.output_tokens == 5
    assert answer.usage.cached_tokens is not None
    assert changes[-1] == len(answer.text)
