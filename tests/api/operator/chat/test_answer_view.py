"""What stands on the terminal while an answer is written, and behind it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from api.operator.answer import Answer, Called, Counted, Ended, Event, Failed, Said, Thought, Waiting
from api.operator.chat.answer_view import AnswerView

CLEAR = "\x1b[2K"


def drawn(*events: Event, width: int = 80, height: int = 24, terminal: bool = True) -> tuple[list[str], str]:
    """Return what each event added to the output, a frame after each, and what the end added."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=width, height=height, color_system=None)
    answer, frames, at = Answer(0.0), list[str](), 0
    with AnswerView(console, answer) as view:
        for second, event in enumerate(events, 1):
            answer.take(event, float(second))
            view.draw(float(second))
            frames.append(output.getvalue()[at:])
            at = len(output.getvalue())
        view.finish(float(len(events)))
    return frames, output.getvalue()[at:]


def text(*events: Event) -> str:
    """Return what stays, as a file would get it."""
    frames, end = drawn(*events, terminal=False)
    return "".join(frames) + end


@pytest.mark.parametrize(
    ("events", "shows"),
    [
        ([Waiting("queued 3")], "queued 3 1.0 s"),
        ([Waiting("prefill 5/9")], "prefill 5/9 1.0 s"),
        ([Thought("a"), Thought("b")], "thinking… 1.0 s, 2 tokens"),
        ([Called(0, "c", "look", '{"a": 1')], "calls look: 7 characters"),
        ([Said("**half"), Said(" a")], "**half a"),
        ([Said("```py\nx = 1")], "x = 1"),
    ],
)
def test_what_is_going_on_is_live(events: list[Event], shows: str) -> None:
    frames, _ = drawn(*events)
    assert shows in frames[-1]


def test_a_finished_block_is_printed_once() -> None:
    """Later frames do not draw it again."""
    frames, end = drawn(Said("alpha\n\nsec"), Said("ond\n\n"), Said("third\n"), Ended("stop"))
    assert "alpha" in frames[0]
    assert "alpha" in frames[1]  # Live until the next block has a line.
    assert not any("alpha" in later for later in (*frames[2:], end))
    assert "second" not in end
    assert "third" in end


def test_a_frame_is_no_taller_than_the_terminal() -> None:
    """It shows the newest lines: what has scrolled away cannot be erased."""
    frames, _ = drawn(Said("- item\n" * 100 + "- last"), height=10)
    assert 1 <= frames[-1].count("item") < 10
    assert "last" in frames[-1]


def test_what_stays_is_the_answer_and_its_figures() -> None:
    usage = Counted(10, 7, 9, 3)
    left = text(
        Thought("hm"), Said("a  \n\n```\ncode\n```\n"), Called(0, "", "look", "{}"), usage, Ended("stop")
    )
    assert left == (
        "thought for 1.0 s, 1 token  (/thinking shows it)\n"
        "\na\n"
        "\n code\n"
        "\ntool call (not run): look\n{}\n"
        "\n7 tokens · 3.0 tokens/s · first after 1.0 s · prompt 10, 90% cached\n"
    )


def test_an_answer_that_failed_before_its_first_word_has_no_figures() -> None:
    assert text(Failed("503: the queue is full")) == "503: the queue is full\n"


def test_a_links_target_is_seen() -> None:
    assert "(http://elsewhere)" in text(Said("[bank](http://elsewhere)"), Ended("stop"))


def test_lines_have_no_spaces_at_their_ends() -> None:
    """They would wrap when the terminal gets narrower."""
    left = text(Said("# head\n\ntext\n\n- item\n\n| a |\n|---|\n| 1 |\n\n    code\n"), Ended("stop"))
    assert not [line for line in left.splitlines() if line != line.rstrip()]
