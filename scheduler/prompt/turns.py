"""A conversation as the strictest templates take it: one system message, first, and turns that alternate.

Agents write more freely. Claude Code puts a system message behind the first question, Codex instructs twice,
OpenCode asks twice in a row: Qwen3.5's template raises for the first two of these, Gemma's and Mistral's for
the last. What is said stays, in its order; only who says it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    for message in messages:
        if message["role"] not in ("system", "user"):
            turns.append(message)
        elif turns and turns[-1]["role"] == "user":
            turns[-1] = {**turns[-1], "content": _said([turns[-1], message])}
        else:
            turns.append({**message, "role": "user"})
    return turns


def _said(messages: Iterable[Message]) -> str:
    return _JOINT.join(message["content"] for message in messages)
