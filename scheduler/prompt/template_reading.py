"""What of a conversation a chat template writes, found at load: a template that reads another form of
messages than it gets drops words and says nothing.

Each role's words are tried as a text and as a list of parts, and passed as the template reads them (LLaVA's
reads parts alone). A system message that arrives in neither form begins the first question; a question that
arrives in neither is refused. Then each unusual order of turns is tried. Where words are lost as sent, all
conversations are passed in the strictest order; what is lost in that, too, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import pairwise, product

from scheduler.answer.notations.description import Notation
from scheduler.errors import TemplateFailed
from scheduler.prompt.chat_template import Renderer, alternating, orders, strict, without_system
from scheduler.prompt.history_forms import APART, PROBE_TOOL, TEXTLESS, Form, forms_of
from scheduler.request import ChatPrompt, Message, Reasoning, Tool


class Outcome(Enum):
    """What became of the words of a conversation."""

    WRITTEN = auto()
    LOST = auto()
    RAISED = auto()


@dataclass(frozen=True, slots=True)
class Shape:
    """An unusual order of turns: a conversation that has it, and how another one is known to have it."""

    name: str
    prompt: ChatPrompt
    is_of: Callable[[ChatPrompt], bool]


@dataclass(frozen=True, slots=True)
class TemplateReading:
    """`parts`: the roles whose words the template reads as a list of parts, all others as a text. `dropped`:
    those of which it writes nothing."""

    parts: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    folded: tuple[Shape, ...] = ()
    """Those whose system message begins the first question, because it is lost elsewhere."""
    reordered: tuple[Shape, ...] = ()
    """Those that are passed in the strictest order of turns, because words are lost in another."""
    lost: tuple[Shape, ...] = ()
    """What it loses words of in any order."""
    refused: tuple[str, ...] = ()
    """The names of those that it raises at in any order."""
    forms: tuple[Form, ...] = ()
    """In which histories are passed, one after the other."""
    forgotten: tuple[str, ...] = ()
    """What it writes nothing of in any form."""
    continues: bool = True
    """Whether a begun answer can be continued."""
    switches_thinking: bool = False
    """Whether `enable_thinking` changes the prompt."""
    efforts: Mapping[str, str | None] = field(default_factory=dict)
    """What is passed for an effort of reasoning at which the template raises: the nearest, or None for its
    own."""

    def verdicts(self, *, generic: bool, reasons: bool) -> tuple[str, ...]:
        """Return what is unusual, for an operator: a short line each about the template. `generic`: what it
        makes of tools and results does not count, because they are written as text (`generic_tools.py`).
        `reasons`: whether its model does."""
        return tuple(self._verdicts(generic, reasons))

    def _verdicts(self, generic: bool, reasons: bool) -> Iterator[str]:
        if self.parts:
            yield f"reads messages of {', '.join(sorted(self.parts))} as parts"
        for role in sorted(self.dropped - ({"tool"} if generic else set())):
            who = "every chat is" if role == "user" else "conversations with them are"
            yield f"writes nothing of messages of {role}: {who} refused"
        if self.folded:
            yield f"loses {self.folded[0].name}: it begins the first question"
        unwritten = [*(shape.name for shape in self.lost), *self.refused]
        if generic or "tool" in self.dropped:
            unwritten = [name for name in unwritten if name not in (_RESULTS_ALONE, _TWO_RESULTS)]
        if unwritten and not self.dropped & {"user", "assistant"}:
            yield f"refuses {_enumerated(list(dict.fromkeys(unwritten)))}"
        if not generic:
            yield from dict.fromkeys(form.verdict for form in self.forms)
            if forgotten := [name for name in self.forgotten if reasons or "thoughts" not in name]:
                yield f"writes no {_enumerated(forgotten)}"
        if not self.continues and "assistant" not in self.dropped:
            yield "does not continue a begun answer: a prefill is refused"
        if self.switches_thinking:
            yield "switches thinking"
        if self.efforts:
            yield f"raises at the reasoning efforts {_enumerated(list(self.efforts))}: the nearest is passed"


_RESULTS_ALONE = "results of tools that are not offered"
_TWO_RESULTS = "two results in a row"


def _enumerated(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _message(role: str, number: int = 1) -> Message:
    return {"role": role, "content": f"penstock {role} {number}"}


_SYSTEM, _ASKED, _ANSWERED, _RESULT = map(_message, ("system", "user", "assistant", "tool"))
_ASKED_AGAIN = _message("user", 2)
_CALL = {"id": "penstock1", "type": "function", "function": {"name": PROBE_TOOL.name, "arguments": {}}}
_CALLED = (
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {**_RESULT, "tool_call_id": _CALL["id"], "name": PROBE_TOOL.name},
)
_ROLES: tuple[tuple[str, ChatPrompt], ...] = (
    ("user", ChatPrompt((_ASKED,))),
    ("system", ChatPrompt((_SYSTEM, _ASKED))),
    ("assistant", ChatPrompt((_ASKED, _ANSWERED, _ASKED_AGAIN))),
    ("tool", ChatPrompt((_ASKED, *_CALLED), tools=(PROBE_TOOL,))),
)


def _has_results_alone(prompt: ChatPrompt) -> bool:
    return not prompt.offered_tools and "tool" in _roles(prompt)


def _roles(prompt: ChatPrompt) -> list[str]:
    return [message["role"] for message in prompt.messages]


def _shape(name: str, messages: tuple[Message, ...], is_of: Callable[[list[str], list[str]], bool]) -> Shape:
    """`is_of`: of all roles in their order, and of those of the conversation."""

    def of(prompt: ChatPrompt) -> bool:
        roles = _roles(prompt)
        return is_of(roles, [role for role in roles if role != "system"])

    return Shape(name, ChatPrompt(messages), of)


def _pair(role: str) -> Callable[[list[str], list[str]], bool]:
    return lambda roles, spoken: (role, role) in pairwise(spoken)


_SYSTEM_SHAPES = (
    _shape("a system message", (_SYSTEM, _ASKED), lambda roles, _: "system" in roles),
    _shape("a system message alone", (_SYSTEM,), lambda roles, _: "system" in roles and "user" not in roles),
    # Mistral's of 2023 write it in the last question, if that is the last message.
    _shape(
        "a system message where the last turn is no question",
        (_SYSTEM, _ASKED, _ANSWERED),
        lambda roles, _: "system" in roles and roles[-1] != "user",
    ),
)
_SHAPES = (
    *_SYSTEM_SHAPES,
    _shape(
        "a second question",
        (_ASKED, _ANSWERED, _ASKED_AGAIN),
        lambda roles, _: "assistant" in roles and "user" in roles[roles.index("assistant") :],
    ),
    _shape("two questions in a row", (_ASKED, _ASKED_AGAIN), _pair("user")),
    _shape(
        "two answers in a row",
        (_ASKED, _ANSWERED, _message("assistant", 2), _ASKED_AGAIN),
        _pair("assistant"),
    ),
    _shape("an answer first", (_ANSWERED, _ASKED), lambda _, spoken: spoken[:1] == ["assistant"]),
    # DeepSeek's write the last one alone.
    _shape(
        "two system messages",
        (_SYSTEM, _message("system", 2), _ASKED),
        lambda roles, _: roles.count("system") > 1,
    ),
    _shape(
        "a later system message",
        (_SYSTEM, _ASKED, _message("system", 2)),
        lambda roles, spoken: "system" in roles[roles.index(spoken[0]) :] if spoken else False,
    ),
    Shape(_RESULTS_ALONE, ChatPrompt((_ASKED, *_CALLED)), _has_results_alone),
)

_CALLED_TWICE = (
    {"role": "assistant", "content": "", "tool_calls": [_CALL, {**_CALL, "id": "penstock2"}]},
    _CALLED[1],
    {**_CALLED[1], **_message("tool", 2), "tool_call_id": "penstock2"},
)


def _two_results(tools: tuple[Tool, ...]) -> Shape:
    """Tried in the forms that a history takes, which may pass each result with its call."""

    def of(prompt: ChatPrompt) -> bool:
        return bool(prompt.offered_tools) is bool(tools) and ("tool", "tool") in pairwise(_roles(prompt))

    return Shape(_TWO_RESULTS, ChatPrompt((_ASKED, *_CALLED_TWICE), tools=tools), of)


def reading_of(
    render: Renderer, tools: tuple[Tool, ...] = (), notation: Notation | None = None
) -> TemplateReading:
    """Return what the template writes of each role's words, and of each shape. `tools`: those with which it
    is tried, as some models have another template for them. `notation`: of the model's calls. About
    thirty prompts: 10 ms of CPU time."""
    reading = TemplateReading()

    def outcome(prompt: ChatPrompt, tried: TemplateReading) -> Outcome:
        given = prompt if _has_results_alone(prompt) or prompt.tools else replace(prompt, tools=tools)
        return _outcome(fitted(render, tried), given)

    for role, prompt in _ROLES:
        as_text = outcome(prompt, reading)
        if as_text is Outcome.WRITTEN:
            continue
        with_parts = replace(reading, parts=reading.parts | {role})
        as_parts = outcome(prompt, with_parts)
        if as_parts is Outcome.WRITTEN:
            reading = with_parts
        elif Outcome.LOST not in (as_text, as_parts) or role == "system":
            continue
        elif role != "user" or not _has_own_roles(render):
            reading = replace(reading, dropped=reading.dropped | {role})
    for shape in _SYSTEM_SHAPES:
        if outcome(shape.prompt, reading) is Outcome.LOST:
            reading = replace(reading, folded=(*reading.folded, shape))
    lost = (shape for shape in _SHAPES if outcome(shape.prompt, reading) is Outcome.LOST)
    reading = replace(reading, reordered=tuple(lost))
    found = [(shape, outcome(shape.prompt, reading)) for shape in _SHAPES]
    reading = replace(
        reading,
        lost=tuple(shape for shape, result in found if result is Outcome.LOST),
        refused=tuple(shape.name for shape, result in found if result is Outcome.RAISED),
    )
    forms, forgotten = forms_of(lambda forms: fitted(render, replace(reading, forms=forms)), notation)
    reading = replace(reading, forms=forms, forgotten=forgotten)
    written = fitted(render, reading)
    results = [_two_results(offered) for offered in ((), (PROBE_TOOL,))]
    lost = (shape for shape in results if _outcome(written, shape.prompt) is Outcome.LOST)
    reading = replace(reading, lost=(*reading.lost, *lost))
    reading = replace(reading, continues=_continues(written), switches_thinking=_switches_thinking(written))
    return replace(reading, efforts=_efforts(written))


def _outcome(render: Renderer, prompt: ChatPrompt) -> Outcome:
    """Return whether the words stand in the text, those of the conversation in its order. A system message
    may stand anywhere."""
    try:
        text = render(prompt)
    except Exception:  # A template is a program and may raise anything.
        return Outcome.RAISED
    place = 0
    for message in prompt.messages:
        words = message["content"]
        found = text.find(words, 0 if message["role"] == "system" else place)
        if found < 0:
            return Outcome.LOST
        if message["role"] != "system":
            place = found + len(words)
    return Outcome.WRITTEN


def _has_own_roles(render: Renderer) -> bool:
    """Return whether it is a reranker's: for a query and a document."""
    pair = ({"role": "query", "content": "penstock query"}, {"role": "document", "content": "penstock page"})
    return _outcome(render, ChatPrompt(pair)) is Outcome.WRITTEN


def _continues(render: Renderer) -> bool:
    with suppress(Exception):
        begun = ChatPrompt((_ASKED, _ANSWERED), continue_final=True)
        return render(begun).endswith(_ANSWERED["content"])
    return False


def _switches_thinking(render: Renderer) -> bool:
    with suppress(Exception):
        asked = ChatPrompt((_ASKED,))
        on, off = (render(replace(asked, reasoning=Reasoning(enabled))) for enabled in (True, False))
        return on != off
    return False


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def _efforts(render: Renderer) -> dict[str, str | None]:
    """Return what to pass for each effort at which the template raises. "none" is nobody's nearest."""

    def raises(effort: str | None) -> bool:
        try:
            render(ChatPrompt((_ASKED,), reasoning=Reasoning(True, effort)))
        except Exception:  # A template is a program and may raise anything.
            return True
        return False

    refused = [effort for effort in _EFFORTS if raises(effort)]
    if not refused or raises(None):
        return {}
    taken = [at for at, effort in enumerate(_EFFORTS) if at and effort not in refused]
    return {effort: _nearest(_EFFORTS.index(effort), taken) for effort in refused}


def _nearest(effort: int, taken: Sequence[int]) -> str | None:
    if effort == 0 or not taken:
        return None
    return _EFFORTS[min(taken, key=lambda other: (abs(other - effort), -other))]


def fitted(render: Renderer, reading: TemplateReading) -> Renderer:
    """Return the renderer that passes messages in the form and in an order that the template reads. Where the
    template raises in every order, it raises what it did for the messages as sent."""

    def in_form(message: Message) -> Message:
        if message["role"] not in reading.parts or not isinstance(message.get("content"), str):
            return message
        return {**message, "content": [{"type": "text", "text": message["content"]}]}

    def rendered(prompt: ChatPrompt) -> str:
        effort = prompt.reasoning.effort
        if effort is not None and effort in reading.efforts:
            prompt = replace(prompt, reasoning=replace(prompt.reasoning, effort=reading.efforts[effort]))
        messages = prompt.messages
        if any(shape.is_of(prompt) for shape in reading.folded):
            messages = without_system(alternating(messages))
        if any(shape.is_of(prompt) for shape in reading.reordered):
            messages = strict(messages)
        for message in messages:
            if message["role"] in reading.dropped and message.get("content"):
                raise TemplateFailed(
                    f"it writes nothing of messages with the role {message['role']}", param="messages"
                )
        for shape in reading.lost:
            if shape.is_of(replace(prompt, messages=messages)):
                raise TemplateFailed(f"it does not write {shape.name}", param="messages")
        if prompt.continue_final and not reading.continues:
            raise TemplateFailed("it does not continue a begun message", param="messages")
        error: Exception | None = None
        textless = tuple(TEXTLESS if form is APART else form for form in reading.forms)
        for forms, order in product(dict.fromkeys((reading.forms, textless)), orders(messages)):
            passed = replace(prompt, messages=order)
            for form in forms:
                passed = form.apply(passed)
            try:
                return render(replace(passed, messages=tuple(map(in_form, passed.messages))))
            except Exception as raised:  # A template is a program and may raise anything.
                error = error or raised
        assert error is not None
        raise error

    return rendered
