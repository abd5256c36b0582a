"""The tools of Anthropic's messages API: the client's own, and typed ones that clients run, as functions with
the schemas of its documentation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from api.bodies.body import Body
from api.bodies.fields import JsonObject, WithoutEffect
from api.dialects.anthropic.content import CACHE, CacheControl
from api.dialects.foreign import name_unread
from api.dialects.openai.tools import STRICT


class CustomTool(Body):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: JsonObject
    cache_control: Annotated[CacheControl | None, CACHE] = None
    strict: Annotated[StrictBool | None, STRICT] = None
    eager_input_streaming: Annotated[
        StrictBool | None, WithoutEffect("arguments always stream as soon as the model's syntax allows")
    ] = None
    defer_loading: Annotated[
        StrictBool | None,
        WithoutEffect("the server has no tool search: every tool is offered at once"),
    ] = None
    input_examples: Annotated[
        Any, WithoutEffect("chat templates have no field for them", named_unless=([],))
    ] = None
    allowed_callers: Annotated[Any, WithoutEffect("only the model calls tools")] = None


def as_offered(tools: Any) -> Any:
    """Offer typed tools that a client runs as custom ones. Leave out what only Anthropic's server runs, or
    only its code calls, and what is not known: the offer does not require its use."""
    if not isinstance(tools, list):
        return tools
    kept = []
    for tool in tools:
        if not isinstance(tool, dict):
            kept.append(tool)
            continue
        kind, callers = tool.get("type"), tool.get("allowed_callers")
        if isinstance(callers, list) and callers and "direct" not in callers:
            name_unread(tool, ",".join(map(str, callers)), "allowed_callers")
        elif kind in (None, "custom"):
            kept.append(tool)
        elif (custom := _as_custom(tool)) is not None:
            kept.append(custom)
        else:
            name_unread(tool, kind)
    return kept


_PATH = {"type": "string", "description": "absolute path of a file or a folder"}
_EDITS: dict[str, Any] = {
    "path": _PATH,
    "file_text": {"type": "string", "description": "for create: the file's text"},
    "old_str": {"type": "string", "description": "for str_replace: the text to replace, which occurs once"},
    "new_str": {"type": "string", "description": "for str_replace: the new text"},
    "insert_line": {"type": "integer", "description": "for insert: the line behind which to insert, from 0"},
    "insert_text": {"type": "string", "description": "for insert: the text"},
    "view_range": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "for view: first and last line, from 1; -1 is the last",
    },
}


def _commands(*names: str) -> dict[str, Any]:
    return {"command": {"type": "string", "enum": list(names)}}


_TOOLS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "bash_": (
        "Run a command in a bash shell that keeps its state.",
        {
            "command": {"type": "string", "description": "the command"},
            "restart": {"type": "boolean", "description": "true restarts the shell; then without a command"},
        },
        [],
    ),
    "text_editor_": (
        "View, create and edit text files.",
        {**_commands("view", "create", "str_replace", "insert"), **_EDITS},
        ["command", "path"],
    ),
    "memory_": (
        "Read and change files below /memories, which are kept between conversations.",
        {
            **_commands("view", "create", "str_replace", "insert", "delete", "rename"),
            **_EDITS,
            "old_path": {"type": "string", "description": "for rename"},
            "new_path": {"type": "string", "description": "for rename"},
        },
        ["command"],
    ),
}
"""By how their types begin: what each does, its parameters, and those that are required."""
_KEPT = ("cache_control", "strict", "defer_loading", "eager_input_streaming")


def _as_custom(tool: dict[str, Any]) -> dict[str, Any] | None:
    """Return a typed tool as a custom one, or None if no client runs it, or it needs more than text."""
    kind = str(tool.get("type"))
    known = next((known for prefix, known in _TOOLS.items() if kind.startswith(prefix)), None)
    if known is None:
        return None
    description, properties, required = known
    kept = {name: tool[name] for name in _KEPT if name in tool}
    schema = {"type": "object", "properties": properties, "required": required}
    name = tool.get("name") or kind.partition("_")[0]
    return {"name": name, "description": description, "input_schema": schema, **kept}
