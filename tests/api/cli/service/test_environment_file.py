"""The file of keys: who may read it, and that what is written is read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.cli.errors import OperatorError
from api.cli.service.environment_file import parsed, read, written
from tests.examples import examples

VALUES = st.text(
    st.characters(exclude_categories=["Cc", "Zl", "Zp", "Cs"]) | st.sampled_from("'\"# "), max_size=8
)


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,3}", fullmatch=True), VALUES, max_size=3))
@settings(deadline=None, derandomize=True, max_examples=examples(60))
def test_what_is_written_is_read_again(variables: dict[str, str]) -> None:
    assert parsed(written(variables), "here") == variables


@pytest.mark.parametrize("end", ["\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\0"])
@pytest.mark.parametrize("value", ["x%sB=y", "x%s"])
def test_a_value_adds_no_line(value: str, end: str) -> None:
    """Whatever Python takes for the end of one."""
    with pytest.raises(OperatorError, match="A has a line break"):
        written({"A": value % end})


def test_comments_quotes_and_spaces() -> None:
    text = "# keys\n\n A=1 \nB='two words'\nC=\"#3\"\nD=a=b\n"
    assert parsed(text, "here") == {"A": "1", "B": "two words", "C": "#3", "D": "a=b"}


def test_a_bad_line_is_named_without_its_value() -> None:
    """It may be a key, and the message gets into a log."""
    with pytest.raises(OperatorError, match="here, line 2: expected NAME=value") as refused:
        parsed("A=1\nsecret-key\n", "here")
    assert "secret-key" not in str(refused.value)


def test_a_file_that_others_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "environment"
    path.write_text("A=1\n")
    path.chmod(0o640)
    with pytest.raises(OperatorError, match="chmod 600"):
        read(path)


def test_no_file_is_no_variable(tmp_path: Path) -> None:
    assert read(tmp_path / "environment") == {}
