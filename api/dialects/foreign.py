"""What tells of the conversation and is not known here: of another provider's own tools, or of next year.

It becomes one line of text, or nothing where it says nothing to a model, and is named to the client like an
unknown field: a refusal would come back with every later turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from pydantic import ValidationError

from api.bodies.fields import UNSUPPORTED
from api.bodies.unknown_fields import MAX_NAME_CHARACTERS, UnknownFields

MAX_LINE_CHARACTERS = 4096
_MAX_DEPTH = 8
_LONGEST_BLOB = 200

_SILENT = frozenset(
    (
        *("thinking", "redacted_thinking", "reasoning"),
        *("compaction", "compaction_summary", "context_compaction", "fallback"),
        *("configuration_update", "mcp_list_tools", "mcp_tool_listing", "mcp_approval_response"),
    )
)
"""Types of which no word is for the model: an earlier model's thoughts, encrypted text, and settings."""
_UNSAID = frozenset(
    (
        *("id", "type", "status", "object", "index", "data", "result", "signature", "fingerprint"),
        *("cache_control", "caller", "created_by", "server_label", "server_name", "execution"),
        *("annotations", "citations", "logprobs", "media_type", "format", "encoding", "retrieved_at"),
    )
)
"""Members whose text says nothing to a model, beside ids and what is encrypted."""
_IN_JSON = frozenset(("input", "arguments", "action", "operation"))
_BLOB = re.compile(rf"data:|[A-Za-z0-9+/_=-]{{{_LONGEST_BLOB}}}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def name_unread(value: dict[str, Any], kind: Any, field: str = "type") -> None:
    """Name to the client a kind of thing that is not read."""
    if (unknown := UnknownFields.current()) is not None:
        unknown.note(value, f"{field}:{kind}")


def with_known_role(value: Any, roles: Collection[str]) -> Any:
    """Return a message whose role is one of these: another one is the user's, and is named."""
    if isinstance(value, dict) and isinstance(role := value.get("role"), str) and role not in roles:
        name_unread(value, role, "role")
        return {**value, "role": "user"}
    return value


def line(value: dict[str, Any]) -> str:
    """Return `[web_search_tool_result Penstocks https://...]`, or an empty string; of a compaction its
    summary, which stands for all that was before it."""
    kind = value.get("type")
    if kind == "compaction" and isinstance(summary := value.get("content"), str):
        return summary
    if isinstance(kind, str) and kind in _SILENT:
        return ""
    found, room = [_UNSAFE.sub("?", str(kind or "unknown"))[:MAX_NAME_CHARACTERS]], MAX_LINE_CHARACTERS
    for text in _texts(value, 0):
        found.append(text[:room])
        room -= len(text)
        if room <= 0:
            break
    return f"[{' '.join(' '.join(found).split())[:MAX_LINE_CHARACTERS]}]"


def _texts(value: Any, depth: int, name: str = "") -> Iterator[str]:
    if isinstance(value, str):
        is_blob = name != "text" and len(value) > _LONGEST_BLOB and _BLOB.match(value)
        yield f"{len(value)} characters" if is_blob else value
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        for item in value:
            yield from _texts(item, depth + 1, name)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        for member, given in value.items():
            if member in _UNSAID or member.endswith("_id") or member.startswith("encrypted"):
                continue
            if member in _IN_JSON and isinstance(given, dict | list) and given:
                given = json.dumps(given, ensure_ascii=False)
            yield from _texts(given, depth + 1, member)


def readable(value: Any, read: Callable[[Any], Any], instead: Callable[[dict[str, Any]], Any]) -> Any:
    """Return what `read` makes of a list, with `instead` of each member that it cannot read. Raise
    ValidationError for what is known and refused, and for what is no list of objects."""
    try:
        return read(value)
    except ValidationError as error:
        if not isinstance(value, list) or _is_refusal(error):
            raise
    return read([one if _is_read(one, read) else instead(one) for one in value])


def _is_read(one: Any, read: Callable[[Any], Any]) -> bool:
    try:
        read([one])
    except ValidationError as error:
        if not isinstance(one, dict) or _is_refusal(error):
            raise
        return False
    return True


def _is_refusal(error: ValidationError) -> bool:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return any(one["type"] == UNSUPPORTED for one in found)
