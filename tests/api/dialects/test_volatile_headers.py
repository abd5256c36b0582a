"""Which system blocks are dropped, and that no others are."""

from __future__ import annotations

import pytest

from api.dialects.volatile_headers import is_volatile, stable


@pytest.mark.parametrize(
    "block",
    [
        "x-anthropic-billing-header: cc_version=2.1.37.3a4; cc_entrypoint=cli; cch=00000;",
        "x-anthropic-anything:",
        "x-anthropic-billing-header: a\n",
    ],
)
def test_a_block_that_is_such_a_header_is_dropped(block: str) -> None:
    """Its neighbours stay as they are."""
    assert is_volatile(block)
    assert stable(["a", block, "b"]) == ["a", "b"]


@pytest.mark.parametrize(
    "block",
    [
        "",
        "x-anthropic-",
        "x-anthropic-: nameless",
        "x-anthropic-billing-header without a colon",
        "x-anthropic-two words: no header",
        " x-anthropic-billing-header: not at the beginning",
        "You are Claude Code.\nx-anthropic-billing-header: quoted",
        "X-Other: a",
        "x-anthropic-billing-header: a\nYou are Claude Code.",
        "x-anthropic-billing-header: a; " + "You are Claude Code. " * 30,
    ],
)
def test_everything_else_stays(block: str) -> None:
    """A prompt may speak of such headers."""
    assert stable([block]) == [block]
