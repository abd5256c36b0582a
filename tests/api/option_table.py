"""The table of options in `api/OPTIONS.md`, generated from the settings: `python -m
tests.api.option_table`."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from pathlib import Path

from api.options.options import Option, flag, options
from tests.api.field_table import replace_table

PAGE = Path(__file__).parents[2] / "api" / "OPTIONS.md"


def table() -> str:
    """Return a row for each option; those for what a served name may say, too, have one together."""
    rows = ["| option | default | |", "|---|---|---|"]
    for group, members in groupby(options(), key=attrgetter("group")):
        rows.append(f"| **{group}** | | |")
        flags = []
        for option in members:
            if option.field.startswith("default_"):
                flags.append(flag(option.field))
            else:
                rows.append(_row(option))
        if flags:
            names = " ".join(f"`{name}`" for name in flags)
            rows.append(f"| {names} | | Of requests that say none, nor does the name that they ask for. |")
    return "\n".join(rows)


def _row(option: Option) -> str:
    choices = "".join(f" `{choice}`" for choice in option.choices)
    meaning = " ".join(filter(None, [option.help, choices and f"One of{choices}."])).replace("|", "\\|")
    default = option.default_text and f"`{option.default_text}`"
    return f"| `{flag(option.field)}` | {default} | {meaning} |"


def rewrite(text: str) -> str:
    return replace_table(text, "| option | default |", table())


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text()))
