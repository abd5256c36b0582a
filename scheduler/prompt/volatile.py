"""System blocks that differ with every request and are not for the model.

Agents put lines like `x-anthropic-billing-header: cc_version=...; cch=...` in front of their system prompt,
as a block of their own. Left in, each request would begin with other tokens and share no prefix.
A block is dropped whole or kept whole: its text is never edited.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

_PREFIX = "x-anthropic-"
_NAME = frozenset(string.ascii_letters + string.digits + "-")


def is_volatile(block: str) -> bool:
    """Whether `block` begins with a header line `x-anthropic-<name>:`."""
    name, colon, _ = block.partition(":")
    return bool(colon) and name.startswith(_PREFIX) and len(name) > len(_PREFIX) and _NAME.issuperset(name)


def stable(blocks: Iterable[str]) -> list[str]:
    """The blocks of a system message that stay."""
    return [block for block in blocks if not is_volatile(block)]
