"""The line that is typed, key by key, and the lines before it."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from api.operator.chat.line_editor import LineEditor, history

ENTER, ALT_ENTER, CTRL_C, CTRL_D, UP = "\r", "\x1b\r", "\x03", "\x04", "\x1b[A"


def typed(folder: Path, *lines: str) -> list[str]:
    """Return what each of these keys enter."""
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        editor = LineEditor(lambda: ["tiny"], {"XDG_CACHE_HOME": str(folder)})
        found = []
        for line in lines:
            keys.send_text(line)
            found.append(editor.read())
        return found


def test_a_question_may_have_several_lines(tmp_path: Path) -> None:
    keys = [
        f"one{ALT_ENTER}two{ENTER}",
        f"one\\{ENTER}two{ENTER}",
        f"one\ntwo{ENTER}",
        f"\x1b[200~one\ntwo\x1b[201~{ENTER}",
    ]
    assert typed(tmp_path, *keys) == ["one\ntwo"] * 4


def test_ctrl_c_empties_a_line_before_it_ends_anything(tmp_path: Path) -> None:
    assert typed(tmp_path, f"wrong{CTRL_C}right{ENTER}") == ["right"]
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


def test_a_history_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "chat-history"
    path.write_text("".join(f"\n# {number}\n+{'x' * 1000}\n" for number in range(2000)))
    found = list(history(tmp_path).load_history_strings())
    assert path.stat().st_size < 1 << 20
    assert 400 < len(found) < 600
    assert set(found) == {"x" * 1000}
