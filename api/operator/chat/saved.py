"""A conversation as a file: Markdown to read, JSON to go on with."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from api.operator.answer import Call, Reply
from api.operator.chat.conversation import SETTINGS, Conversation, Turn

_MOST_BYTES = 64 << 20


class NotSaved(Exception):
    """A line for the user."""


def save(conversation: Conversation, name: str, *, overwrite: bool) -> Path:
    """Write it, whole or not at all. Raise NotSaved."""
    path = Path(name).expanduser()
    match path.suffix.lower():
        case ".json":
            text = as_json(conversation)
        case ".md" | ".markdown":
            text = as_markdown(conversation)
        case _:
            raise NotSaved(f"{name}: the name must end in .md or .json")
    if path.exists() and not overwrite:
        raise NotSaved(f"{path} exists; /save! {name} overwrites it")
    try:
        _replace(path, text)
    except OSError as error:
        raise NotSaved(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _replace(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def as_markdown(conversation: Conversation) -> str:
    parts = [f"# Conversation with {conversation.model}"]
    if conversation.settings:
        parts.append(", ".join(f"{name} {value}" for name, value in conversation.settings.items()))
    if conversation.system:
        parts += ["## System", conversation.system]
    for turn in conversation.turns:
        parts += ["## User", turn.question]
        if (reply := turn.reply) is None:
            continue
        parts.append("## Assistant")
        if reply.thinking:
            parts.append(f"<details><summary>Thinking</summary>\n\n{reply.thinking}\n\n</details>")
        if reply.text:
            parts.append(reply.text)
        parts += [f"Tool call (not run): `{call.name}`\n\n    {call.arguments}" for call in reply.calls]
        if not reply.is_whole:
            parts.append("*(The answer is not complete.)*")
    return "\n\n".join(parts) + "\n"


def as_json(conversation: Conversation) -> str:
    turns = [
        {
            "question": turn.question,
            "reply": None
            if turn.reply is None
            else {
                "text": turn.reply.text,
                "thinking": turn.reply.thinking,
                "calls": [
                    {"id": call.call_id, "name": call.name, "arguments": call.arguments}
                    for call in turn.reply.calls
                ],
                "is_whole": turn.reply.is_whole,
            },
        }
        for turn in conversation.turns
    ]
    body = {
        "penstock_chat": 1,
        "model": conversation.model,
        "system": conversation.system,
        "settings": dict(conversation.settings),
        "turns": turns,
        # For other programs: what a request would have.
        "messages": conversation.messages(),
    }
    return json.dumps(body, ensure_ascii=False, indent=1) + "\n"


def load(name: str) -> Conversation:
    """Raise NotSaved."""
    path = Path(name).expanduser()
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise NotSaved(f"{path} is too large for a conversation")
        body = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise NotSaved(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise NotSaved(f"{path} is not JSON; only conversations saved as .json can be loaded") from error
    try:
        if body["penstock_chat"] != 1:
            raise ValueError
        return Conversation(
            _text(body["model"]),
            _text(body["system"]),
            tuple(Turn(_text(turn["question"]), _reply(turn["reply"])) for turn in body["turns"]),
            {key: SETTINGS[key].read(str(value)) for key, value in body["settings"].items()},
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NotSaved(f"{path} is not a conversation of penstock chat") from error


def _reply(body: Mapping[str, Any] | None) -> Reply | None:
    if body is None:
        return None
    calls = tuple(
        Call(_text(call["id"]), _text(call["name"]), _text(call["arguments"])) for call in body["calls"]
    )
    return Reply(_text(body["text"]), _text(body["thinking"]), calls, body["is_whole"] is True)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
