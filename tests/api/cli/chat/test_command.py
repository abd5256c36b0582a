"""`penstock chat` refuses what it cannot use before it looks for a server."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from api.cli.chat.command import chat
from tests.api.cli.chat.test_pipe import Terminal


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "cannot be read: it is not text (UTF-8)"),
        (b"{}", "is no JSON list of tools"),
    ],
)
def test_a_file_that_holds_no_tools_is_refused_with_the_reason(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "x.json"
    if content is not None:
        file.write_bytes(content)
    ended = CliRunner().invoke(chat, ["--tools", str(file), "hi"])
    assert ended.exit_code == 2
    assert f"Invalid value for '--tools': {file} {says}" in ended.output


def test_a_session_needs_a_terminal_for_its_output_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(click.UsageError) as caught:
        chat.main([], standalone_mode=False)
    assert str(caught.value) == (
        "standard output is not a terminal: give a question as an argument or on standard input"
    )
