"""What of a conversation a chat template writes, found at load: a template that reads another form of
messages than it gets drops words and says nothing.

Each role's words are tried as a text and as a list of parts, and passed as the template reads them (LLaVA's
reads parts alone). A system message that arrives in neither form begins the first question; a question that
arrives in neither is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler.errors import TemplateFailed
from scheduler.prompt.chat_template import Renderer, alternating, without_system
from scheduler.request import ChatPrompt, Message, Tool

_WORDS = "penstock words"
_ASKED: Message = {"role": "user", "content": "penstock question"}
_TOOL = Tool("penstock_probe", "", {"type": "object", "properties": {}})
_CALL = {"id": "penstock1", "type": "function", "function": {"name": _TOOL.name, "arguments": {}}}


@dataclass(frozen=True, slots=True)
class TemplateReading:
    """`parts`: the roles whose words the template reads as a list of parts, all others as a text. `dropped`:
    those of which it writes nothing."""

    parts: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()

    @property
    def described(self) -> str:
        """Return it for an operator; empty for a template that reads texts and drops nothing."""
        habits = [f"reads messages of {_listed(self.parts)} as parts"] if self.parts else []
        habits += [f"writes nothing of messages of {_listed(self.dropped)}"] if self.dropped else []
        return " and ".join(habits)


def _listed(roles: frozenset[str]) -> str:
    return ", ".join(sorted(roles))


def reading_of(render: Renderer) -> TemplateReading:
    """Return what the template writes of each role's words. One that raises in both forms is asked again by
    each request."""
    reading = TemplateReading()
    for role, messages in _probes():
        if _arrives(fitted(render, reading), messages) is False:
            as_parts = replace(reading, parts=reading.parts | {role})
            if _arrives(fitted(render, as_parts), messages):
                reading = as_parts
            elif role != "user" or not _has_own_roles(render):
                reading = replace(reading, dropped=reading.dropped | {role})
    return reading


def _probes() -> list[tuple[str, tuple[Message, ...]]]:
    def spoken(role: str) -> Message:
        return {"role": role, "content": _WORDS}

    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    result = spoken("tool") | {"tool_call_id": _CALL["id"], "name": _TOOL.name}
    return [
        ("user", (spoken("user"),)),
        ("system", (spoken("system"), _ASKED)),
        ("assistant", (_ASKED, spoken("assistant"), _ASKED)),
        ("tool", (_ASKED, called, result)),
    ]


def _arrives(render: Renderer, messages: tuple[Message, ...]) -> bool | None:
    """Return whether the words are in the prompt; None if the template cannot write of tools."""
    with_tools = any(message["role"] == "tool" for message in messages)
    try:
        return _WORDS in render(ChatPrompt(messages, tools=(_TOOL,) if with_tools else ()))
    except Exception:  # A template is a program and may raise anything.
        return None if with_tools else False


def _has_own_roles(render: Renderer) -> bool:
    """Return whether it is a reranker's: for a query and a document."""
    pair = ({"role": "query", "content": _WORDS}, {"role": "document", "content": "penstock document"})
    return bool(_arrives(render, pair))


def fitted(render: Renderer, reading: TemplateReading) -> Renderer:
    """Return the renderer that passes messages in the form that the template reads."""

    def in_form(message: Message) -> Message:
        if message["role"] not in reading.parts or not isinstance(message.get("content"), str):
            return message
        return {**message, "content": [{"type": "text", "text": message["content"]}]}

    def rendered(prompt: ChatPrompt) -> str:
        messages = prompt.messages
        if "system" in reading.dropped and any(message["role"] == "system" for message in messages):
            messages = without_system(alternating(messages))
        for message in messages:
            if message["role"] in reading.dropped and message.get("content"):
                raise TemplateFailed(
                    f"it writes nothing of messages with the role {message['role']}", param="messages"
                )
        return render(replace(prompt, messages=tuple(map(in_form, messages))))

    return rendered if reading != TemplateReading() else render
