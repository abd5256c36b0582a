"""Tools that are added to a conversation, or removed from it, at a place in it: blocks of messages of role
`system`, and what a compaction kept of those that it stands for.

Templates write tools once, before all messages. So the model is offered what is there at the conversation's
end; the blocks themselves are lines of text in their places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from api.dialects.anthropic.content import CHANGES
from api.dialects.anthropic.tools import CustomTool, is_hosted
from api.dialects.foreign import name_unread


def _changes(messages: Any) -> Iterator[dict[str, Any]]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            kind = block.get("type") if isinstance(block, dict) else None
            if kind in CHANGES:
                yield block
            elif kind == "compaction" and isinstance(kept := block.get("tool_changes"), list):
                yield from (one for one in kept if isinstance(one, dict) and one.get("type") in CHANGES)


def changed_tools(tools: Any, messages: Any) -> Any:
    """Return the tools of a body as `messages` change them: as they are, where nothing does. What names no
    tool, or defines none that can be read, changes nothing and is named to the client."""
    changes = list(_changes(messages))
    if not changes or not isinstance(tools, list | None):
        return tools
    known = {tool["name"]: tool for tool in tools or () if isinstance(tool, dict) and _name(tool)}
    unnamed = [tool for tool in tools or () if not (isinstance(tool, dict) and _name(tool))]
    offered = dict(known)
    for change in changes:
        tool = change.get("tool")
        of_tool: dict[str, Any] = tool if isinstance(tool, dict) else {}
        definition = of_tool.get("definition")
        name = _name(definition) if isinstance(definition, dict) else _name(of_tool)
        if change["type"] == "tool_removal" and name in known:
            offered.pop(name, None)
        elif change["type"] == "tool_addition" and (found := _defined(definition) or known.get(name)):
            known[name] = offered[name] = found
        else:
            name_unread(change, change["type"], known=True)
    return [*unnamed, *offered.values()]


def _name(tool: dict[str, Any]) -> str:
    name = tool.get("name")
    return name if isinstance(name, str) else ""


def _defined(definition: Any) -> dict[str, Any] | None:
    if not isinstance(definition, dict) or is_hosted(definition):
        return None
    try:
        CustomTool.model_validate(definition)
    except ValidationError:
        return None
    return definition
