"""Reuse: the share of each prompt that an unbounded prefix cache would hit.

It is the theoretical maximum for a server's cached share, counted in characters of message content, because
tokenizers differ. It ignores the chat template's tokens and the block size of caches. A prompt counts as
earlier if it was sent earlier, answered or not: requests of one burst can share work in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_ROLE, _CONTENT = "\ud800", "\ud801"
"""Characters before a message's role and before its content. Lone surrogates, which UTF-8 text cannot
contain, keep messages apart; they are not counted."""


class _Node:
    """A stretch of text that all prompts below it share."""

    __slots__ = ("children", "label")

    def __init__(self, label: str) -> None:
        self.label = label
        self.children: dict[str, _Node] = {}
        """Children by the first character of their label."""


class ReuseIndex:
    """A radix tree of all prompts, and of prompts with their answers. Its memory is the text that was new
    each time: it holds a conversation of many turns once."""

    def __init__(self) -> None:
        self._root = _Node("")

    def add(self, messages: Sequence[Mapping[str, str]]) -> float:
        """Add this prompt, and return which share of its characters was a common prefix with an earlier one
        (0 for a prompt without text)."""
        matched = self._add("".join(_ROLE + one["role"] + _CONTENT + one["content"] for one in messages))
        total = common = 0
        for one in messages:
            length = len(one["content"])
            total += length
            matched -= len(one["role"]) + 2
            common += max(0, min(matched, length))
            matched -= length
        return common / total if total else 0.0

    def _add(self, text: str) -> int:
        """Return the length of the longest prefix of `text` that was in the tree."""
        node, at = self._root, 0
        while at < len(text):
            child = node.children.get(text[at])
            if child is None:
                node.children[text[at]] = _Node(text[at:])
                return at
            if not text.startswith(child.label, at):
                common = _common(child.label, text, at)
                child = node.children[text[at]] = _split(child, common)
            node, at = child, at + len(child.label)
        return at


def _split(node: _Node, at: int) -> _Node:
    """Return a node for the first `at` characters, with the rest below it."""
    upper = _Node(node.label[:at])
    node.label = node.label[at:]
    upper.children[node.label[0]] = node
    return upper


def _common(label: str, text: str, at: int) -> int:
    """Return how far `label` agrees with `text` from `at` on; they do differ. It bisects: comparing slices is
    a memory comparison, and a loop over 50,000 characters is not. The slices add up to one label."""
    agrees, parts = 0, len(label)
    while parts - agrees > 1:
        middle = (agrees + parts) // 2
        if text.startswith(label[agrees:middle], at + agrees):
            agrees = middle
        else:
            parts = middle
    return agrees
