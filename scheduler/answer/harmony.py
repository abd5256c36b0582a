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
_NO_TOOLS = frozenset(("assistant", "user", "all", "commentary", "final", "self"))
_THOUGHTS = ("analysis", "self")


@dataclass(slots=True)
class Header:
    """The text between a message's start and its `<|message|>`."""

    text: str = ""

    @property
    def recipient(self) -> str | None:
        """Return the tool that the message is for; None if it is for the user, or nobody."""
        found = _RECIPIENT.search(self.text)
        return None if found is None or found[1] in _NO_TOOLS else found[1]

    @property
    def is_reasoning(self) -> bool:
        named = [*_CHANNEL.findall(self.text), *_RECIPIENT.findall(self.text)]
        return any(name in _THOUGHTS for name in named)

    @property
    def is_none(self) -> bool:
        """Return whether it is certainly no header but the answer itself."""
        text = self.text.lstrip()
        begins = any(one.startswith(text[: len(one)]) for one in _BEGINNINGS)
        return not begins or len(self.text) > _LONGEST_HEADER

    @property
    def message(self) -> str:
        """Return what is no part of a header in it: the mark between header and message is missing."""
        return _PARTS.sub("", self.text)
