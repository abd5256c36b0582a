"""Blocks of a history that this server neither wrote nor knows: of another provider's own tools, or of next
year. Each becomes one line of text, so that the conversation can go on, and is named to the client like an
unknown field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from api.bodies.unknown_fields import UnknownFields

_READ = frozenset(
    ("name", "tool_name", "title", "url", "text", "stdout", "stderr", "error_code", "source", "cited_text")
)
"""Members whose text says something to a model; ids, signatures and encrypted content do not."""
_WITHIN = frozenset(("content", "tool", "definition"))
MAX_LINE_CHARACTERS = 4096
_MAX_DEPTH = 4


def understood(value: Any, known: frozenset[str]) -> Any:
    """Return a list of blocks with text in place of what is not of a `known` type. Texts alone are blocks of
    text, and null is none."""
    if not isinstance(value, list):
        return value
    if all(isinstance(block, dict) and block.get("type") in known for block in value):
        return value
    return [_block(block, known) for block in value if block is not None]


def _block(block: Any, known: frozenset[str]) -> Any:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind in known:
        return block
    name_ignored(block, kind)
    mark = block.get("cache_control")
    return {"type": "text", "text": line(block), **({} if mark is None else {"cache_control": mark})}


def name_ignored(value: dict[str, Any], name: str) -> None:
    if (unknown := UnknownFields.current()) is not None:
        unknown.note(value, name)


def line(block: dict[str, Any]) -> str:
    """Return `[web_search_tool_result Title https://...]`; of a compaction its summary, which stands for all
    that was before it."""
    if block["type"] == "compaction" and isinstance(summary := block.get("content"), str):
        return summary
    text = " ".join(" ".join((block["type"], *_texts(block, 0))).split())
    return f"[{text[:MAX_LINE_CHARACTERS]}]"


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        for item in value:
            yield from _texts(item, depth + 1)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        for name, member in value.items():
            if name == "input" and member:
                yield json.dumps(member, ensure_ascii=False)
            elif (name in _READ and isinstance(member, str)) or name in _WITHIN:
                yield from _texts(member, depth + 1)
