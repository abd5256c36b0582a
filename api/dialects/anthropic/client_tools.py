"""Anthropic's typed tools that clients run, as functions with the schemas of its documentation."""

from __future__ import annotations

from typing import Any, NamedTuple

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


class ClientTool(NamedTuple):
    description: str
    properties: dict[str, Any]
    required: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """The values of the property `command`, if it has some."""

    @property
    def input_schema(self) -> dict[str, Any]:
        command = {"command": {"type": "string", "enum": list(self.commands)}} if self.commands else {}
        properties = {**command, **self.properties}
        return {"type": "object", "properties": properties, "required": [*command, *self.required]}


_TOOLS = {
    "bash_": ClientTool(
        "Run a command in a bash shell that keeps its state.",
        {
            "command": {"type": "string", "description": "the command"},
            "restart": {"type": "boolean", "description": "true restarts the shell; then without a command"},
        },
    ),
    "text_editor_": ClientTool(
        "View, create and edit text files.", _EDITS, ("path",), ("view", "create", "str_replace", "insert")
    ),
    "memory_": ClientTool(
        "Read and change files below /memories, which are kept between conversations.",
        {
            **_EDITS,
            "old_path": {"type": "string", "description": "for rename"},
            "new_path": {"type": "string", "description": "for rename"},
        },
        commands=("view", "create", "str_replace", "insert", "delete", "rename"),
    ),
}
_KEPT = ("cache_control", "strict", "defer_loading", "eager_input_streaming")


def as_custom(tool: dict[str, Any]) -> dict[str, Any] | None:
    """Return a typed tool as a custom one, or None if no client runs it, or it needs more than text."""
    kind = str(tool.get("type"))
    known = next((known for prefix, known in _TOOLS.items() if kind.startswith(prefix)), None)
    if known is None:
        return None
    kept = {name: tool[name] for name in _KEPT if name in tool}
    name = tool.get("name") or kind.partition("_")[0]
    return {"name": name, "description": known.description, "input_schema": known.input_schema, **kept}
