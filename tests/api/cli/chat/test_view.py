"""What stands on the terminal while an answer is written, and behind it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.markdown import Markdown

from api.cli.answer import Answer
from api.cli.chat.view import AnswerView, finished

USAGE = {"prompt_tokens": 10, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 9}}


def said(text: str) -> str:
    return delta(content=text)


def thought(text: str) -> str:
    return delta(reasoning_content=text)


def called(name: str, arguments: str) -> str:
    return delta(tool_calls=[{"index": 0, "function": {"name": name, "arguments": arguments}}])


def delta(**fields: Any) -> str:
    return "data: " + json.dumps({"choices": [{"delta": fields}]}) + "\n"


def ended(usage: dict[str, Any] | None = None) -> str:
    chunk = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}
    return "data: " + json.dumps(chunk) + "\n"


def drawn(*lines: str, height: int = 24, terminal: bool = True) -> tuple[list[str], str]:
    """Return what each line of the body added to the output, a frame after each, and what the end added."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=80, height=height, color_system=None)
    answer, frames, at = Answer(0.0), list[str](), 0
    with AnswerView(console, answer) as view:
        for second, line in enumerate(lines, 1):
            answer.feed(line.encode(), float(second))
            view.draw(float(second))
            frames.append(output.getvalue()[at:])
            at = len(output.getvalue())
        view.finish()
    return frames, output.getvalue()[at:]


def text(*lines: str) -> str:
    """Return what stays, as a file would get it."""
    frames, end = drawn(*lines, terminal=False)
    return "".join(frames) + end


@pytest.mark.parametrize(
    ("lines", "shows"),
    [
        ([""], "waiting for the server, 1.0 s"),
        ([": queued 0\n"], "in the queue, next in line, 1.0 s"),
        ([": queued 1\n"], "in the queue, 1 request ahead, 1.0 s"),
        ([": queued 3, waits for: a slot\n"], "in the queue, 3 requests ahead; waits for: a slot, 1.0 s"),
        ([": prefill 5/9000\n"], "reading the prompt: 5 of 9,000 tokens, 1.0 s"),
        ([": OPENROUTER PROCESSING\n"], "OPENROUTER PROCESSING, 1.0 s"),
        ([thought("a"), thought("b")], "ab"),
        ([called("look", '{"a": 1')], "calls look: 7 characters"),
        ([said("**half"), said(" a")], "**half a"),
        ([said("```py\nx = 1")], "x = 1"),
    ],
)
def test_what_is_going_on_is_live(lines: list[str], shows: str) -> None:
    frames, _ = drawn(*lines)
    assert shows in frames[-1]


def test_a_finished_block_is_printed_once() -> None:
    """Later frames do not draw it again."""
    frames, end = drawn(said("alpha\n\nsec"), said("ond\n\n"), said("third\n"), ended())
    assert "alpha" in frames[0]
    assert not any("alpha" in later for later in (*frames[1:], end))
    assert "second" not in end
    assert "third" in end


def test_a_frame_is_no_taller_than_the_terminal() -> None:
    """It shows the newest lines: what has scrolled away cannot be erased."""
    frames, _ = drawn(said("- item\n" * 100 + "- last"), height=10)
    assert 1 <= frames[-1].count("item") < 10
    assert "last" in frames[-1]


def test_a_long_block_is_not_rendered_at_each_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand lines of code take longer than a frame."""
    rendered: list[str] = []

    def counted(text: str, **fields: Any) -> Any:
        rendered.append(text)
        return Markdown(text, **fields)

    monkeypatch.setattr("api.cli.chat.view.Markdown", counted)
    frames, _ = drawn(said("```py\n"), *(said(f"x{number} = 1\n" * 100) for number in range(12)))
    assert "x11 = 1" in frames[-1]
    assert max(map(len, rendered[:-1])) <= 8000
    assert rendered[-1].count("x11 = 1") == 100, "whole at its end"


def test_what_stays_is_the_thinking_the_answer_and_its_figures() -> None:
    left = text(thought("h\nm"), said("a  \n\n```\ncode\n```\n"), called("look", "{}"), ended(USAGE))
    assert left == (
        "h\nm\na\n\n code\ntool call (not run): look\n{}\n"
        "7 tokens · 3.0 tokens/s · first after 1.0 s · prompt 10, 90% cached\n"
    )


def test_an_answer_that_failed_before_its_first_word_has_no_figures() -> None:
    assert text('data: {"error": "503: the queue is full"}\n') == "503: the queue is full\n"


def test_a_links_target_is_seen() -> None:
    assert "(http://elsewhere)" in text(said("[bank](http://elsewhere)"), ended())


def test_lines_have_no_spaces_at_their_ends() -> None:
    """They would wrap when the terminal gets narrower."""
    left = text(said("# head\n\ntext\n\n- item\n\n| a |\n|---|\n| 1 |\n\n    code\n"), ended())
    assert not [line for line in left.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize(
    ("written", "done"),
    [
        ("one", ""),
        ("one\n\n", ""),
        ("one\n\ntwo", "one\n\n"),
        ("- one\n\n  goes on", ""),
        ("```\na\n\nb\n", ""),
        ("```\na\n\nb\n```\n\ntwo", "```\na\n\nb\n```\n\n"),
        ("~~~\n```\n\nb\n~~~\n\ntwo", "~~~\n```\n\nb\n~~~\n\n"),
        ("````\n```\n\nb", ""),
    ],
)
def test_a_block_is_finished_when_the_next_one_has_begun(written: str, done: str) -> None:
    """Not within code, and not where a list may go on."""
    assert written[: finished(written)] == done


@given(st.text("a`~ \n-", max_size=40), st.text("a`~ \n-", max_size=20))
def test_what_is_finished_stays_so(written: str, more: str) -> None:
    """Whatever follows."""
    assert finished(written + more) >= finished(written)
