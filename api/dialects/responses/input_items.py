"""The items of a stored conversation, as clients list them: `GET /v1/responses/{id}/input_items`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from api.answers.errors import refused
from api.dialects.responses.items import as_items
from api.dialects.responses.store import Turn, encoded

_MEDIA = frozenset(("image_url", "url", "file_data", "data", "result"))
LONGEST_LINK = 2048
"""Longer values of these members are data: the server keeps none of it."""
MAX_PAGE = 100
PAGE_BYTES = 1 << 20
"""A page ends behind the item with which it is as long: each reader has a copy for as long as it reads."""
_ID_KINDS = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
_ADDING = ("additional_tools", "tool_search_output")


def kept(value: Any) -> list[Any]:
    """Return the items of a body's input for the store: without media, and without what only asks for
    something."""
    items = as_items(value)
    found = items if isinstance(items, list) else []
    return [_without_media(item) for item in found if _kind(item) != "compaction_trigger"]


def _kind(item: Any) -> Any:
    return item.get("type") if isinstance(item, dict) else None


def _without_media(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_media(member) for name, member in value.items() if not _is_media(name, member)}
    return [_without_media(member) for member in value] if isinstance(value, list) else value


def _is_media(name: str, member: Any) -> bool:
    return (
        isinstance(member, str) and name in _MEDIA and (member[:5] == "data:" or len(member) > LONGEST_LINK)
    )


def input_turn(messages_json: bytes, items: Sequence[Any], owner: str) -> Turn:
    adding = [item for item in items if _kind(item) in _ADDING]
    return Turn(messages_json, list_json(items), owner, encoded(adding) if adding else b"")


def list_json(items: Iterable[Any]) -> bytes:
    """Encode item by item, so that no step holds the interpreter for long."""
    return b"[" + b",".join([encoded(item) for item in items]) + b"]"


def listed(turns: Iterable[Turn], seen: set[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the items of a conversation, each with an id of its own: pages begin behind one. 100 MB take a
    second. `seen`: ids of items before these, to which theirs are added."""
    seen = set() if seen is None else seen
    for turn in turns:
        found = msgspec.json.decode(turn.items_json)
        items = found["output"] if isinstance(found, dict) else found
        for index, item in enumerate(items):
            if isinstance(item, dict):
                whole = _whole(item, f"{turn.owner.rpartition('_')[2]}i{index:04}", seen)
                seen.add(whole["id"])
                yield whole


def _whole(item: dict[str, Any], place: str, seen: Set[str]) -> dict[str, Any]:
    kind = given if isinstance(given := item.get("type"), str) and given else "message"
    own = item.get("id")
    is_free = isinstance(own, str) and own and own not in seen
    item_id = own if is_free else f"{_ID_KINDS.get(kind, 'item')}_{place}"
    whole = {**item, "id": item_id, "type": kind}
    if kind == "message":
        whole.setdefault("status", "completed")
        if isinstance(text := item.get("content"), str):
            is_answer = item.get("role") == "assistant"
            part = {"type": "output_text", "text": text, "annotations": []}
            whole["content"] = [part if is_answer else {"type": "input_text", "text": text}]
    return whole


@dataclass(frozen=True, slots=True)
class Page:
    """Which items of a list a client asks for."""

    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    limit: int = 20

    def json_of(self, items: Iterable[dict[str, Any]]) -> bytes:
        """Return the list's JSON text. Raise ApiFailure for an id that is not in it."""
        found = list(items)
        if self.order == "desc":
            found.reverse()
        if self.after is not None:
            found = found[_place(found, self.after) + 1 :]
        page, size = list[bytes](), 0
        for item in found[: self.limit]:
            page.append(encoded(item))
            if (size := size + len(page[-1])) >= PAGE_BYTES:
                break
        ends = {
            "first_id": found[0]["id"] if page else None,
            "last_id": found[len(page) - 1]["id"] if page else None,
            "has_more": len(found) > len(page),
        }
        head = encoded({"object": "list", **ends})[:-1]
        return head + b',"data":[' + b",".join(page) + b"]}"


def _place(items: Sequence[dict[str, Any]], item_id: str) -> int:
    for index, item in enumerate(items):
        if item["id"] == item_id:
            return index
    message = f"Item with id {item_id!r} not found in the list."
    raise refused(message, "after", "invalid_value")
