"""How the model of `penstock serve` is given."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from api.cli.command_line import penstock
from api.cli.serve_command import serve_settings
from api.options.options import options
from scheduler.errors import OptionError


@pytest.mark.parametrize(
    "arguments", [["owner/one"], ["--model", "owner/one"], ["owner/one", "--model", "owner/one"]]
)
def test_the_model_needs_no_option(arguments: list[str]) -> None:
    assert serve_settings([*arguments, "--max-slots", "4"]).model == "owner/one"


def test_the_command_line_prevails_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MODEL", "owner/other")
    assert serve_settings(["owner/one"]).model == "owner/one"


def test_help_has_options_alone_under_heads() -> None:
    """The text above them says what MODEL is; --help itself is the last."""
    heads = re.findall(
        r"^([A-Z].*):$", CliRunner().invoke(penstock, ["serve", "--help"]).output, re.MULTILINE
    )
    assert heads == [*dict.fromkeys(option.group for option in options()), "Other"]


def test_two_different_models_are_refused() -> None:
    with pytest.raises(OptionError, match="given twice: owner/one and --model owner/two"):
        serve_settings(["owner/one", "--model", "owner/two"])
