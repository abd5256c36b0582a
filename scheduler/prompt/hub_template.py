"""A model's Jinja template with what transformers passes to it, by kept texts where that is the same."""

from __future__ import annotations

import inspect
import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from scheduler.prompt.kept_template import KeptTemplate
from scheduler.prompt.kept_texts import KeptTexts
from scheduler.prompt.template_names import FUNCTIONS
from scheduler.request import Message

_CALL: dict[str, Any] = {
    "type": "function",
    "id": "call00001",
    "function": {"name": "look", "arguments": {"path": "/tmp", "deep": True, "most": 3}},
}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
_SYSTEM: Message = {"role": "system", "content": "Be kind."}
_TURNS: tuple[Message, ...] = (
    {"role": "user", "content": "Look \U0001f440"},
    {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [_CALL]},
    {"role": "tool", "content": "nothing", "tool_call_id": "call00001", "name": "look"},
    {"role": "assistant", "content": "<think>\nso\n</think>\n\nNothing there.", "name": None},
    {"role": "user", "content": "Again"},
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a template gets beside the messages."""

    tools: list[dict[str, Any]] | None = None
    continue_final: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the template."""


class HubTemplate:
    """Thread-safe."""

    def __init__(self, tokenizer: Any, texts: KeptTexts | None) -> None:
        """`tokenizer`: transformers', with a chat template. `texts` None: nothing is kept."""
        self._tokenizer = tokenizer
        self._template: KeptTemplate | None = None
        if texts is not None:
            texts.whole = self._prepare(texts)

    def render(self, messages: Sequence[Message], asked: Asked, salt: str) -> str:
        """Return what transformers' `apply_chat_template` makes of them; raise what it does."""
        variables = None if self._template is None else self._variables(messages, asked)
        if self._template is None or variables is None:
            return self._render_whole(messages, asked)
        return self._template.render(variables, salt)

    def _render_whole(self, messages: Sequence[Message], asked: Asked) -> str:
        text: str = self._tokenizer.apply_chat_template(
            list(messages),
            tools=asked.tools,
            tokenize=False,
            add_generation_prompt=not asked.continue_final,
            continue_final_message=asked.continue_final,
            **asked.options,
        )
        return text

    def _variables(self, messages: Sequence[Message], asked: Asked) -> dict[str, Any] | None:
        """Return what transformers passes to the template; None where that is not certain."""
        if not messages or asked.continue_final or not self._taken.isdisjoint(asked.options):
            return None
        # Some clients send None for what is not there, which templates would write.
        present = [{name: value for name, value in one.items() if value is not None} for one in messages]
        # Most values are strings, and long: they are plain by their type.
        others = [value for one in present for value in one.values() if type(value) is not str]
        try:
            marshal.dumps((others, asked.tools, dict(asked.options)), 0)
        except ValueError:
            return None  # Not only plain data: transformers makes it plain.
        return {
            **self._special,
            **asked.options,
            "messages": self._alias(present),
            "tools": asked.tools,
            "documents": None,
            "add_generation_prompt": True,
        }

    def _prepare(self, texts: KeptTexts) -> str | None:
        """Compile the template and try it; return what is rendered each time, and why."""
        source = self._tokenizer.chat_template
        if not isinstance(source, str):
            return "the model has several templates"
        try:
            # Imported late, as transformers is everywhere; these are parts of it that are not documented.
            from transformers.utils import chat_template_utils as parts

            self._alias: Any = parts._alias_reasoning_fields
            self._special = parts._plain_template_data(self._tokenizer.special_tokens_map)
            # A variable of such a name is an argument, or is called: transformers and Jinja judge that.
            calls = (self._tokenizer.apply_chat_template, parts.render_jinja_template)
            names = {name for call in calls for name in inspect.signature(call).parameters}
            self._taken = FUNCTIONS | names | {"messages", "self"}
            self._template = KeptTemplate(parts._compile_jinja_template(source), source, texts)
        except Exception as error:  # A template is a program, and these parts may be others tomorrow.
            self._template = None
            return f"it cannot be prepared: {error}"
        if not self._agrees():
            self._template = None
            return "it came out otherwise when it was tried"
        if not self._template.sites and not self._template.rejected:
            return "no loop of it writes text"
        return "; ".join(self._template.rejected) or None

    def _agrees(self) -> bool:
        """Whether some conversations, each rendered twice, are what transformers makes of them."""
        tried = product(((), (_SYSTEM,)), (None, [_TOOL]), range(1, len(_TURNS) + 1))
        return all(self._agrees_on((*first, *_TURNS[:end]), Asked(tools)) for first, tools, end in tried)

    def _agrees_on(self, messages: Sequence[Message], asked: Asked) -> bool:
        try:
            whole = self._render_whole(messages, asked)
        except Exception:  # Many refuse some conversations.
            return True
        try:
            return all(self.render(messages, asked, "") == whole for _ in range(2))
        except Exception:
            return False
