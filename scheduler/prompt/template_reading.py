"""What of a conversation a chat template writes, found at load: a template that reads another form of
messages than it gets drops words and says nothing.

Each role's words are tried as a text and as a list of parts, and passed as the template reads them (LLaVA's
reads parts alone). Then unusual orders of turns are tried. Where the template loses words of any, each
conversation is first rendered with words of its own in its messages, in one order of turns after the other:
it is passed in the first that has all of them, or refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler.answer.notations.description import Notation
from scheduler.errors import TemplateFailed
from scheduler.prompt.chat_template import Renderer, orders, tried
from scheduler.prompt.history_forms import APART, PROBE_TOOL, TEXTLESS, Form, forms_of
from scheduler.request import ChatPrompt, Message, Reasoning, Tool


@dataclass(frozen=True, slots=True)
class TemplateReading:
    """`parts`: the roles whose words the template reads as a list of parts, all others as a text. `dropped`:
    those of which it writes nothing."""

    parts: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    loses: bool = False
    """Whether it loses words of a conversation as sent."""
    refused: tuple[str, ...] = ()
    """The names of orders that it loses words of, or raises at, however they are passed."""
    forms: tuple[Form, ...] = ()
    """In which histories are passed, one after the other."""
    forgotten: tuple[str, ...] = ()
    """What it writes nothing of in any form."""
    continues: bool = True
    """Whether a begun answer can be continued."""
    efforts: Mapping[str, str | None] = field(default_factory=dict)
    """What is passed for an effort of reasoning at which the template raises: the nearest, or None for its
    own."""

    def verdicts(self, *, generic: bool, reasons: bool) -> Iterator[str]:
        """Yield what is unusual, for an operator: a short line each about the template. `generic`: what it
        makes of tools and results does not count, because they are written as text (`generic_tools.py`).
        `reasons`: whether its model does."""
        if self.parts:
            yield f"reads messages of {', '.join(sorted(self.parts))} as parts"
        for role in sorted(self.dropped - ({"tool"} if generic else set())):
            who = "every chat is" if role == "user" else "conversations with them are"
            yield f"writes nothing of messages of {role}: {who} refused"
        without_results = generic or "tool" in self.dropped
        refused = [name for name in self.refused if not (without_results and "result" in name)]
        if refused and not self.dropped & {"user", "assistant"}:
            yield f"refuses {_enumerated(refused)}"
        if not generic:
            yield from dict.fromkeys(form.verdict for form in self.forms)
            if forgotten := [name for name in self.forgotten if reasons or "thoughts" not in name]:
                yield f"writes no {_enumerated(forgotten)}"
        if not self.continues and "assistant" not in self.dropped:
            yield "does not continue a begun answer: a prefill is refused"
        if self.efforts:
            yield f"raises at the reasoning efforts {_enumerated(list(self.efforts))}: the nearest is passed"


def _enumerated(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _message(role: str, number: int = 1) -> Message:
    return {"role": role, "content": f"penstock {role} {number}"}


_SYSTEM, _ASKED, _ANSWERED, _RESULT = map(_message, ("system", "user", "assistant", "tool"))
_ASKED_AGAIN = _message("user", 2)


def _called(*ids: str) -> tuple[Message, ...]:
    function = {"name": PROBE_TOOL.name, "arguments": {}}
    calls = [{"id": own, "type": "function", "function": function} for own in ids]
    results = [
        {**_message("tool", number), "tool_call_id": own, "name": PROBE_TOOL.name}
        for number, own in enumerate(ids, 1)
    ]
    return (_ASKED, {"role": "assistant", "content": "", "tool_calls": calls}, *results)


_ONE_RESULT, _TWO_RESULTS = _called("penstock1"), _called("penstock1", "penstock2")
_ROLES = {
    "user": ChatPrompt((_ASKED,)),
    "system": ChatPrompt((_SYSTEM, _ASKED)),
    "assistant": ChatPrompt((_ASKED, _ANSWERED, _ASKED_AGAIN)),
    "tool": ChatPrompt(_ONE_RESULT, tools=(PROBE_TOOL,)),
}
_ORDERS = (
    ("a system message", ChatPrompt((_SYSTEM, _ASKED))),
    ("a system message alone", ChatPrompt((_SYSTEM,))),
    # Mistral's of 2023 write it in the last question, if that is the last message.
    ("a system message where the last turn is no question", ChatPrompt((_SYSTEM, _ASKED, _ANSWERED))),
    ("a second question", _ROLES["assistant"]),
    ("two questions in a row", ChatPrompt((_ASKED, _ASKED_AGAIN))),
    (
        "two answers in a row",
        ChatPrompt((_ASKED, _ANSWERED, _message("assistant", 2), _ASKED_AGAIN)),
    ),
    ("an answer first", ChatPrompt((_ANSWERED, _ASKED))),
    # DeepSeek's write the last one alone.
    ("two system messages", ChatPrompt((_SYSTEM, _message("system", 2), _ASKED))),
    ("a later system message", ChatPrompt((_SYSTEM, _ASKED, _message("system", 2)))),
    ("results of tools that are not offered", ChatPrompt(_ONE_RESULT)),
    ("two results in a row", ChatPrompt(_TWO_RESULTS)),
    ("two results in a row", ChatPrompt(_TWO_RESULTS, tools=(PROBE_TOOL,))),
)
"""Unusual ones, by their names for an operator."""


def reading_of(
    render: Renderer, tools: tuple[Tool, ...] = (), notation: Notation | None = None
) -> TemplateReading:
    """Return what the template writes of each role's words, and of each order. `tools`: those with which it
    is tried, as some models have another template for them. `notation`: of the model's calls. About fifty
    prompts: 10 ms of CPU time."""
    reading = TemplateReading()

    def writes(prompt: ChatPrompt, read: TemplateReading) -> bool | None:
        return _writes(fitted(render, read), replace(prompt, tools=prompt.tools or tools))

    for role, prompt in _ROLES.items():
        with_parts = replace(reading, parts=reading.parts | {role})
        if (as_text := writes(prompt, reading)) is True:
            continue
        if (as_parts := writes(prompt, with_parts)) is True:
            reading = with_parts
        elif False in (as_text, as_parts) and role != "system":
            reading = replace(reading, dropped=reading.dropped | {role})
    forms, forgotten = forms_of(lambda forms: fitted(render, replace(reading, forms=forms)), notation)
    reading = replace(reading, forms=forms, forgotten=forgotten)
    reading = replace(reading, loses=any(writes(prompt, reading) is False for _, prompt in _ORDERS))
    refused = (name for name, prompt in _ORDERS if not writes(prompt, reading))
    reading = replace(reading, refused=tuple(dict.fromkeys(refused)))
    written = fitted(render, reading)
    begun = tried(written, ChatPrompt((_ASKED, _ANSWERED), continue_final=True)) or ""
    return replace(
        reading,
        continues=begun.endswith(_ANSWERED["content"]),
        efforts=_efforts(written),
    )


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def _efforts(render: Renderer) -> dict[str, str | None]:
    """Return what to pass for each effort at which the template raises. "none" is nobody's nearest."""

    def raises(effort: str | None) -> bool:
        return tried(render, ChatPrompt((_ASKED,), reasoning=Reasoning(True, effort))) is None

    refused = [effort for effort in _EFFORTS if raises(effort)]
    if not refused or raises(None):
        return {}
    taken = [at for at, effort in enumerate(_EFFORTS) if at and effort not in refused]
    return {effort: _nearest(_EFFORTS.index(effort), taken) for effort in refused}


def _nearest(effort: int, taken: Sequence[int]) -> str | None:
    if effort == 0 or not taken:
        return None
    return _EFFORTS[min(taken, key=lambda other: (abs(other - effort), -other))]


def _writes(render: Renderer, prompt: ChatPrompt) -> bool | None:
    """Return whether all words are in the text; None if the template raises."""
    text = tried(render, prompt)
    return None if text is None else _lost(prompt.messages, text) is None


def _lost(messages: Sequence[Message], text: str) -> int | None:
    """Return the place of the first message whose words are not in the text, those of the conversation in its
    order. A system message may stand anywhere, and words beside calls may be left out."""
    place = 0
    for at, message in enumerate(messages):
        if message.get("tool_calls"):
            continue
        is_systems, words = message["role"] == "system", message.get("content") or ""
        found = text.find(words, 0 if is_systems else place)
        if found < 0:
            return at
        place = place if is_systems else found + len(words)
    return None


def _in_own_words(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the conversation with words in its messages that stand nowhere else in it."""
    return tuple(
        {**message, "content": f"penstock {at} {message['role']}"} if message.get("content") else message
        for at, message in enumerate(messages)
    )


def fitted(render: Renderer, reading: TemplateReading) -> Renderer:
    """Return the renderer that passes messages in the form and in an order that the template reads. Where the
    template takes none, it raises what it did for the messages as sent."""

    def in_form(message: Message) -> Message:
        if message["role"] not in reading.parts or not isinstance(message.get("content"), str):
            return message
        return {**message, "content": [{"type": "text", "text": message["content"]}]}

    def passed(prompt: ChatPrompt, messages: tuple[Message, ...], forms: tuple[Form, ...]) -> str:
        prompt = replace(prompt, messages=messages)
        for form in forms:
            prompt = form.apply(prompt)
        return render(replace(prompt, messages=tuple(map(in_form, prompt.messages))))

    def rendered(prompt: ChatPrompt) -> str:
        if prompt.continue_final and not reading.continues:
            raise TemplateFailed("it does not continue a begun message", param="messages")
        effort = prompt.reasoning.effort
        if effort is not None and effort in reading.efforts:
            prompt = replace(prompt, reasoning=replace(prompt.reasoning, effort=reading.efforts[effort]))
        own = _in_own_words(prompt.messages)
        textless = tuple(TEXTLESS if form is APART else form for form in reading.forms)
        ways = dict.fromkeys((reading.forms, textless))
        error: Exception | None = None
        # One after the other: the first is the last nearly always.
        for forms, order in ((forms, order) for forms in ways for order in orders(prompt.messages)):
            try:
                lost = _lost(own, passed(prompt, order(own), forms)) if reading.loses else None
                if lost is None:
                    return passed(prompt, order(prompt.messages), forms)
                words = f"it writes nothing of a message with the role {own[lost]['role']} there"
                error = error or TemplateFailed(words, param="messages")
            except Exception as raised:  # A template is a program and may raise anything.
                error = error or raised
        assert error is not None
        raise error

    return rendered
