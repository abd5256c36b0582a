"""The thinking budget of each reasoning effort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

EffortName: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Every value of an effort, also in bodies of every dialect."""
EFFORTS: tuple[str, ...] = get_args(EffortName)
EFFORT_TOKENS: Final[Mapping[str, int | None]] = {
    **{"minimal": 512, "low": 1024, "medium": 8192},
    **dict.fromkeys(("high", "xhigh", "max")),
}
"""None is no budget; "none" turns reasoning off. A request that wants another number gives one."""
