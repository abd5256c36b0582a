"""The value of `--effort-tokens`: a thinking budget for each reasoning effort."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, get_args

EffortName: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Every value of an effort, also in bodies of every dialect."""
EFFORTS: tuple[str, ...] = get_args(EffortName)
_UNLIMITED = "unlimited"


def by_effort(text: str) -> dict[str, int | None]:
    """Parse `low=1024,high=unlimited` to tokens by effort; unlimited is None. Raise ValueError."""
    table: dict[str, int | None] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        effort, _, tokens = (part.strip() for part in pair.partition("="))
        if effort not in EFFORTS:
            raise ValueError(f"{effort!r} is none of {', '.join(EFFORTS)}")
        if effort in table:
            raise ValueError(f"{effort!r} is given twice")
        if tokens != _UNLIMITED and not re.fullmatch("[0-9]{1,9}", tokens):
            raise ValueError(f"{pair!r} is no effort=tokens, with a number or {_UNLIMITED!r}")
        table[effort] = None if tokens == _UNLIMITED else int(tokens)
    return table
