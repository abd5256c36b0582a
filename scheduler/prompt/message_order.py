"""A conversation as the strictest templates take it: one system message, first, and turns that alternate.

Agents write more freely. Claude Code puts a system message behind the first question, Codex instructs twice,
OpenCode asks twice in a row: Qwen3.5's template raises for the first two of these, Gemma's and Mistral's for
the last. What is said stays, in its order; only who says it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from scheduler.request import Message

_JOINT = "\n\n"


def alternating(messages: Sequence[Message]) -> tuple[Message, ...]:
    """System messages at the front are one; later ones are the user's; neighbouring users' are one turn."""
    leading = 0
    while leading < len(messages) and messages[leading]["role"] == "system":
        leading += 1
    head = [{"role": "system", "content": _said(messages[:leading])}] if leading else []
    return (*head, *_joined(messages[leading:]))


def _joined(messages: Iterable[Message]) -> list[Message]:
    turns: list[Message] = []
    for is_users, group in groupby(messages, key=lambda message: message["role"] in ("system", "user")):
        turn = list(group)
        if is_users:
            turns.append({**turn[0], "role": "user", "content": _said(turn)})
        else:
            turns.extend(turn)
    return turns


def _said(messages: Iterable[Message]) -> str:
    return _JOINT.join(message["content"] for message in messages)
