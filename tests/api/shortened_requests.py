"""An agent's first request, cut short for its page of the book, and what the server answers.

Made from what the agent sent (`agents/`): the text of the model's call is the one of that run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CAPTURED = Path(__file__).parent / "agents"
QUESTION = "What does note.txt say?"
EDIT_QUESTION = "Make it a stork"
EDIT = """\
note.txt
<<<<<<< SEARCH
the heron stands in the reeds
=======
the stork stands in the reeds
>>>>>>> REPLACE
"""
"""What a model writes for aider, which has no tools."""
_MAX_CHARACTERS = 48
_KEPT = ("max_tokens", "system", "messages", "input", "tools", "tool_choice", "thinking")
"""Fields of the body that the page shows; of the others the agent's notes name what matters."""


def request(agent: str, model: str) -> tuple[str, dict[str, Any]]:
    """Return path and body of the first request, without `stream`, so that the answer is one object."""
    sent = _captured(agent)
    body = {"model": model} | {name: value for name, value in sent["body"].items() if name in _KEPT}
    for name in ("messages", "input"):
        if name in body:
            body[name] = [_short(one) for one in body[name] if not _is_later(one)]
    if "system" in body:
        body["system"] = [_short(one) for one in body["system"] if "billing-header" not in one["text"]]
    if "tools" in body:
        body["tools"] = [_short_tool(one) for one in body["tools"] if _name(one) == call(agent)[0]]
    return f"{sent['path']}{'?' if sent['query'] else ''}{sent['query']}", body


def answer(agent: str) -> dict[str, Any]:
    """Return the fields of the answer that the page shows."""
    name, arguments = call(agent)
    written = json.dumps(arguments)
    match _captured(agent)["path"]:
        case "/v1/messages":
            use = {"type": "tool_use", "id": "call_...", "name": name, "input": arguments}
            return {"type": "message", "role": "assistant", "content": [use], "stop_reason": "tool_use"}
        case "/v1/responses":
            item = {"type": "function_call", "call_id": "call_...", "name": name, "arguments": written}
            return {"object": "response", "status": "completed", "output": [item]}
        case _ if not name:
            message = {"role": "assistant", "content": EDIT}
            return {"object": "chat.completion", "choices": [{"message": message, "finish_reason": "stop"}]}
        case _:
            asked = {"id": "call_...", "type": "function", "function": {"name": name, "arguments": written}}
            called = {"role": "assistant", "tool_calls": [asked]}
            choice = {"message": called, "finish_reason": "tool_calls"}
            return {"object": "chat.completion", "choices": [choice]}


def call(agent: str) -> tuple[str, dict[str, Any]]:
    """Return the tool that the agent's run used, and the arguments that it must have; without one, none."""
    body = _captured(agent)["body"]
    for item in body.get("input", ()):
        if item["type"] == "function_call":
            return item["name"], _required(body, item["name"], json.loads(item["arguments"]))
    for message in body.get("messages", ()):
        for asked in (one["function"] for one in message.get("tool_calls", ())):
            return asked["name"], _required(body, asked["name"], json.loads(asked["arguments"]))
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_use":
                return block["name"], _required(body, block["name"], block["input"])
    return "", {}


def _required(body: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    (tool,) = (one for one in body["tools"] if _name(one) == name)
    return {name: arguments[name] for name in _schema(tool)["required"]}


def calls() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return tool and arguments of each agent that has some, the longest names first."""
    found = (call(path.stem) for path in CAPTURED.glob("*.json"))
    return iter(
        sorted(((name, arguments) for name, arguments in found if name), key=lambda one: -len(one[0]))
    )


def _captured(agent: str) -> Any:
    return json.loads((CAPTURED / f"{agent}.json").read_text())


def _is_later(message: Any) -> bool:
    """Return whether it is of the model's first turn, or came after it."""
    if message.get("role") == "tool" or "tool_calls" in message:
        return True
    if message.get("type") in ("reasoning", "function_call", "function_call_output"):
        return True
    blocks = message["content"] if isinstance(message["content"], list) else ()
    kinds = {block["type"] for block in blocks}
    return bool(kinds & {"tool_use", "tool_result"}) or "output_text" in kinds


def _short(value: Any) -> Any:
    """Return it with texts of one line, without marks and ids."""
    match value:
        case str() if len(value) > _MAX_CHARACTERS or "\n" in value:
            line = value.strip().splitlines()[0]
            cut = line if len(line) <= _MAX_CHARACTERS else line[:_MAX_CHARACTERS].rpartition(" ")[0]
            return f"{cut} ..."
        case dict():
            return {name: _short(one) for name, one in value.items() if name not in ("id", "cache_control")}
        case list():
            return [_short(one) for one in value]
        case _:
            return value


def _name(tool: Any) -> str:
    return str(tool.get("name") or tool.get("function", {}).get("name", ""))


def _schema(tool: Any) -> Any:
    tool = tool.get("function", tool)
    return tool.get("input_schema") or tool["parameters"]


def _short_tool(tool: Any) -> Any:
    """Return it with the parameters that a call must have."""
    if "function" in tool:
        return tool | {"function": _short_tool(tool["function"])}
    place, schema = "input_schema" if "input_schema" in tool else "parameters", _schema(tool)
    properties = {name: {"type": schema["properties"][name]["type"]} for name in schema["required"]}
    return _short(tool) | {
        place: {"type": "object", "properties": properties, "required": schema["required"]}
    }
