"""Answers of messages with headers: Harmony, the format of gpt-oss, and Muse's.

    <|channel|>analysis<|message|>thoughts<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
    <|start|>assistant<|channel|>final<|message|>the answer<|return|>

    to=self<|message|>thoughts<|eom|><|start|>assistant to=f<|message|>a call<|eom|>

A header says who the message is for. The package `openai-harmony` is not used: it downloads its vocabulary at
first use and needs token ids of that vocabulary, while a model folder has its own.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

MESSAGE = "<|message|>"
START = "<|start|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|eom|>", "<|eot|>", START)
BOUNDS = (*ENDS, "<|channel|>")
"""Where a message is over: the mark at its end may be missing."""
TOKENS = (MESSAGE, *BOUNDS, "<|constrain|>")

_LONGEST_HEADER = 1024
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_PARTS = re.compile(r"^\s*assistant\b|<\|(?:channel|constrain)\|>\s*\w*|\bto=[^\s<]+")
_BEGINNINGS = ("<|channel|>", "<|constrain|>", "to=", "assistant", "commentary", "analysis", "final")
_WORD = re.compile(r"[^\s<>|]+")
_NO_TOOLS = frozenset(("assistant", "user", "all", "commentary", "final", "self"))
_OF_HEADERS = _NO_TOOLS | {"analysis", "json", "code"}
_THOUGHTS = ("analysis", "self")


@dataclass(slots=True)
class Header:
    """The text between a message's start and its `<|message|>`."""

    text: str = ""

    def recipient(self, offered: Container[str]) -> str | None:
        """Return the tool that the message is for; None if it is for the user, or nobody. `offered`: names
        that count wherever they stand."""
        if (found := _RECIPIENT.search(self.text)) is not None:
            return None if found[1] in _NO_TOOLS else found[1]
        words = (word for word in _WORD.findall(self.text) if word not in _OF_HEADERS)
        return next((word for word in words if word in offered), None)

    @property
    def is_reasoning(self) -> bool:
        named = [*_CHANNEL.findall(self.text), *_RECIPIENT.findall(self.text)]
        return any(name in _THOUGHTS for name in named)

    @property
    def is_text(self) -> bool:
        """Return whether it is certainly no header but the answer itself."""
        text = self.text.lstrip()
        return not any(one.startswith(text[: len(one)]) for one in _BEGINNINGS)

    @property
    def is_long(self) -> bool:
        """Return whether its mark is certainly missing."""
        return len(self.text) > _LONGEST_HEADER

    @property
    def message(self) -> str:
        """Return what is no part of a header in it: the mark between header and message is missing."""
        return _PARTS.sub("", self.text)
