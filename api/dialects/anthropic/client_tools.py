"""Anthropic's typed tools that clients run, as functions with the schemas of its documentation."""

from __future__ import annotations

from typing import Any

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


def as_custom(tool: dict[str, Any]) -> dict[str, Any] | None:
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
