"""Drop header blocks from system prompts: they change with every request and are not for the model.

Agents send lines like `x-anthropic-billing-header: cc_version=...; cch=...` before their system prompt, as a
block of their own. If kept, no two requests would share a prefix. A block is dropped or kept whole, never
edited. So only a block that is a single such line is dropped: gateways join blocks, and then the system
prompt follows the line.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

MAX_HEADER_CHARACTERS = 512
"""A longer line is more than a header, and is kept. Claude Code's headers are below 150."""
_PREFIX = "x-anthropic-"
_NAME = frozenset(string.ascii_letters + string.digits + "-")


def is_volatile(block: str) -> bool:
    """Return whether `block` is a header line `x-anthropic-<name>: ...` and nothing else."""
    line = block.rstrip()
    if len(line) > MAX_HEADER_CHARACTERS or len(line.splitlines()) != 1:
        return False
    name, colon, _ = line.partition(":")
    return bool(colon) and name.startswith(_PREFIX) and len(name) > len(_PREFIX) and _NAME.issuperset(name)


def stable(blocks: Iterable[str]) -> list[str]:
    """Return the blocks of a system message without header blocks."""
    return [block for block in blocks if not is_volatile(block)]
