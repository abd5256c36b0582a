"""What a template can take of an answer's thoughts, text and calls in a history, found at load.

An answer has all of them in one message, with ids of the server that wrote it. Templates read less: gpt-oss'
one call a message and no text beside thoughts, Mistral's no text beside calls and ids of nine letters, Kimi's
a tool's name out of the id alone, DeepSeek V3.2's program tools in a system message alone. Each need is tried
in each form until all its words are written; what is lost in every form is named. Pure.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, count
from operator import itemgetter
from typing import Any, TypeAlias

from scheduler.answer.notations.description import NUMBER, TOOL, JsonObject, Keywords, Notation
from scheduler.prompt.chat_template import JOINT, Renderer, tried
from scheduler.request import ChatPrompt, Message, Reasoning, Tool

Messages: TypeAlias = tuple[Message, ...]

PROBE_TOOL = Tool("penstock_probe", "", {"type": "object", "properties": {}})
FOREIGN_ID = "call_0123456789abcdef0123456"
"""An id as other servers make them."""


@dataclass(frozen=True, slots=True)
class Form:
    """A way of passing a conversation. `verdict`: what that says of the template, for an operator."""

    verdict: str
    apply: Callable[[ChatPrompt], ChatPrompt]
    moves_text: bool = False
    """Whether what stands between text and calls is not the template's."""


@dataclass(frozen=True, slots=True)
class _Need:
    """What a history may have. It is tried as it is, and then in each of `forms`. `name`: for an operator, if
    it is lost in all; empty for what is nothing to know."""

    name: str
    prompt: ChatPrompt
    words: tuple[str, ...]
    forms: tuple[Form, ...]
    after: str = ""
    """The name of another need: where that is lost, there is no need to try."""
    same_ids: bool = False
    """Whether an id that stands with the result must stand with the call."""


def _on_messages(change: Callable[[Messages], Iterable[Message]]) -> Callable[[ChatPrompt], ChatPrompt]:
    return lambda prompt: replace(prompt, messages=tuple(change(prompt.messages)))


def _on_answers(change: Callable[[Message], Iterable[Message]]) -> Callable[[ChatPrompt], ChatPrompt]:
    """Return what changes each message of the assistant's that has calls."""

    def changed(messages: Messages) -> Iterator[Message]:
        for message in messages:
            yield from change(message) if message.get("tool_calls") else (message,)

    return _on_messages(changed)


def _rounds(messages: Messages) -> Iterator[tuple[Message, list[Message]]]:
    """Yield each message with the results that follow it."""
    turn: list[Message] = []
    for message in messages:
        if turn and message["role"] != "tool":
            yield turn[0], turn[1:]
            turn = []
        turn.append(message)
    if turn:
        yield turn[0], turn[1:]


def paired(messages: Messages) -> Messages:
    """Return the messages with the results of calls in the order of these, each with its tool's name and its
    call's id. Clients send them as they come, and many templates write no ids."""
    done: list[Message] = []
    for head, results in _rounds(messages):
        calls = list(head.get("tool_calls") or ())
        places: dict[str | None, list[int]] = {}
        for at in reversed(range(len(calls))):
            places.setdefault(calls[at].get("id"), []).append(at)
        placed: list[tuple[int, Message]] = []
        for number, result in enumerate(results):
            own = result.get("tool_call_id")
            at = places[own].pop() if places.get(own) else number if own is None else len(calls)
            call = calls[at] if at < len(calls) else {}
            known = {"name": call["function"]["name"]} if call else {}
            placed.append((at, known | ({"tool_call_id": call["id"]} if call.get("id") else {}) | result))
        done += [head, *(result for _, result in sorted(placed, key=itemgetter(0)))]
    return tuple(done)


def _with_ids(new_id: Callable[[dict[str, Any], set[str]], str]) -> Callable[[ChatPrompt], ChatPrompt]:
    """Return what gives each call another id, and its result the same. `new_id`: of a call, and of those that
    the conversation already has."""

    def changed(messages: Messages) -> Iterator[Message]:
        used: set[str] = set()
        for head, results in _rounds(messages):
            calls: list[dict[str, Any]] = []
            new: dict[str | None, list[str]] = {}
            for call in head.get("tool_calls") or ():
                calls.append({**call, "id": new_id(call, used)})
                used.add(calls[-1]["id"])
                new.setdefault(call.get("id"), []).append(calls[-1]["id"])
            yield {**head, "tool_calls": calls} if calls else head
            for result in results:
                given = result.get("tool_call_id")
                alone = {"id": given, "function": {"name": result.get("name")}}
                own = new[given].pop(0) if new.get(given) else new_id(alone, used)
                yield {**result, "tool_call_id": own}

    return _on_messages(changed)


_LETTERS = string.ascii_letters + string.digits


def _of_nine_letters(call: dict[str, Any], used: set[str]) -> str:
    """Return a call's id, if it is one of Mistral's, or one made of it."""
    given = str(call.get("id"))
    short, numbers = given, chain((0,), count(len(used)))
    while short in used or len(short) != 9 or not set(short) <= set(_LETTERS):
        digest = blake2b(f"{given}/{next(numbers)}".encode(), digest_size=9).digest()
        short = "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)
    return short


def _of_function(call: dict[str, Any], used: set[str]) -> str:
    """Return `functions.NAME:N`, with the id's own number if it has this form and is new."""
    start = f"functions.{call['function']['name']}:"
    given, number = str(call.get("id")), len(used)
    if given.startswith(start) and given.removeprefix(start).isdigit() and given not in used:
        return given
    while f"{start}{number}" in used:
        number = 2 * number + 1  # In few steps, whatever numbers a client has used.
    return f"{start}{number}"


def _thinking_fields(message: Message) -> Message:
    thoughts = message.get("reasoning_content")
    return message | dict.fromkeys(("reasoning", "thought", "tool_plan"), thoughts) if thoughts else message


def _thinking_part(message: Message) -> Message:
    thoughts, text = message.get("reasoning_content"), message.get("content")
    if not thoughts or not isinstance(text, str):
        return message
    parts = [{"type": "thinking", "thinking": thoughts}, *([{"type": "text", "text": text}] if text else [])]
    return {**message, "content": parts}


def _in_thoughts(message: Message) -> Iterator[Message]:
    text, thoughts = message.get("content"), message.get("reasoning_content")
    joined = {"content": "", "reasoning_content": f"{thoughts}{JOINT}{text}"}
    yield message | joined if text and thoughts else message


def _text_apart(message: Message) -> Iterator[Message]:
    if text := message.get("content"):
        yield {"role": "assistant", "content": text}
    yield message | {"content": ""}


def _in_notation(notation: Notation) -> Form | None:
    """Return the form in which calls are text in the model's own notation; None where their values are no
    JSON there."""

    def written(call: dict[str, Any], number: int) -> str:
        function = call["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        if isinstance(notation.arguments, Keywords):
            members = function["arguments"].items()
            arguments = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in members)
        head = notation.head.replace(TOOL, function["name"]).replace(NUMBER, str(number))
        return f"{notation.call_start}{head}{arguments}{notation.tail}{notation.call_end}"

    def as_text(message: Message) -> Iterator[Message]:
        each = [written(call, number) for number, call in enumerate(message["tool_calls"])]
        calls = f"{notation.opening}{notation.separators[0].join(each)}{notation.closing}"
        text = "\n".join(part for part in (message.get("content"), calls) if part)
        yield {name: value for name, value in message.items() if name != "tool_calls"} | {"content": text}

    if not isinstance(notation.arguments, JsonObject | Keywords):
        return None
    return Form("loses calls: they are passed as text in its notation", _on_answers(as_text), True)


def _one_call_each(messages: Messages) -> Iterator[Message]:
    for head, results in _rounds(messages):
        calls = head.get("tool_calls") or ()
        if len(calls) < 2 or len(calls) != len(results):
            yield from (head, *results)
            continue
        # `paired` has put the results in the order of the calls.
        for number, (call, result) in enumerate(zip(calls, results, strict=True)):
            own = head if number == 0 else {"role": "assistant", "content": ""}
            yield from ({**own, "tool_calls": [call]}, result)


def _with_system(prompt: ChatPrompt) -> ChatPrompt:
    if not prompt.offered_tools or any(message["role"] == "system" for message in prompt.messages):
        return prompt
    return replace(prompt, messages=({"role": "system", "content": ""}, *prompt.messages))


APART = Form("loses text beside calls: it is passed as a message before them", _on_answers(_text_apart), True)
TEXTLESS = Form("", _on_answers(lambda message: (message | {"content": ""},)))
"""For a conversation that the template refuses with `APART`."""

_OF_FUNCTIONS = Form(
    "writes a tool's name as a part of a call's id: other ids are replaced", _with_ids(_of_function)
)

QUESTION = "penstock question"
_OF_RESULT = "penstock_named"
"""Another name than the call's, which must stand there by itself."""
THOUGHTS, TEXT, CALL, END = "penstock thoughts", "penstock words", "call 0", "penstock end"


def turn_of(calls: int, **beside: str) -> Messages:
    ids = [f"{FOREIGN_ID}{at}" for at in range(calls)]
    functions = [{"name": PROBE_TOOL.name, "arguments": {"value": f"{CALL[:-1]}{at}"}} for at in range(calls)]
    made = [{"id": own, "type": "function", "function": one} for own, one in zip(ids, functions, strict=True)]
    results = [
        {"role": "tool", "tool_call_id": own, "name": _OF_RESULT, "content": f"penstock result {at}"}
        for at, own in enumerate(ids)
    ]
    asked = {"role": "user", "content": QUESTION}
    return (asked, {"role": "assistant", "content": "", **beside, "tool_calls": made}, *results)


def probe(*messages: Message) -> ChatPrompt:
    # Without thinking some write no thoughts, rightly.
    return ChatPrompt(messages, tools=(PROBE_TOOL,), reasoning=Reasoning(enabled=True))


_ONE = (CALL, "penstock result 0")
_TEXT_AND_THOUGHTS = turn_of(1, content=TEXT, reasoning_content=THOUGHTS)
_AGAIN = ({"role": "assistant", "content": END}, {"role": "user", "content": "penstock last"})
_NEEDS = (
    _Need(
        "",
        probe({"role": "user", "content": QUESTION}),
        (),
        (Form("writes tools in a system message alone: an empty one is passed", _with_system),),
    ),
    _Need(
        "calls",
        probe(*turn_of(1)),
        _ONE,
        (
            Form("takes ids of nine letters: others are replaced", _with_ids(_of_nine_letters)),
            _OF_FUNCTIONS,
        ),
    ),
    _Need("", probe(*turn_of(1)), _ONE, (_OF_FUNCTIONS,), after="calls", same_ids=True),
    _Need(
        "a second call",
        probe(*turn_of(2)),
        (*_ONE, "call 1", "penstock result 1"),
        (Form("writes one call a message: each is passed with its result", _on_messages(_one_call_each)),),
        after="calls",
    ),
    _Need(
        "thoughts beside calls",
        probe(*turn_of(1, reasoning_content=THOUGHTS)),
        (*_ONE, THOUGHTS),
        (
            Form("reads thoughts under another name", _on_messages(lambda each: map(_thinking_fields, each))),
            Form("reads thoughts as parts", _on_messages(lambda each: map(_thinking_part, each))),
        ),
        after="calls",
    ),
    _Need("text beside calls", probe(*turn_of(1, content=TEXT)), (*_ONE, TEXT), (APART,), after="calls"),
    _Need(
        "text and thoughts beside calls",
        probe(*_TEXT_AND_THOUGHTS),
        (*_ONE, TEXT, THOUGHTS),
        (
            Form("loses text beside thoughts and calls: it is passed behind them", _on_answers(_in_thoughts)),
            APART,
        ),
        after="thoughts beside calls",
    ),
    # Not refused, where thoughts are not written.
    _Need("", probe(*_TEXT_AND_THOUGHTS), (*_ONE, TEXT), (APART,), after="calls"),
    _Need(
        "text beside calls of a turn that is over",
        probe(*turn_of(1, content=TEXT), *_AGAIN),
        (*_ONE, TEXT, END),
        (),
        after="text beside calls",
    ),
)


def forms_of(
    fitted: Callable[[tuple[Form, ...]], Renderer], notation: Notation | None = None
) -> tuple[tuple[Form, ...], tuple[str, ...]]:
    """Return the forms in which a template takes histories, and the names of what it loses in all of them.
    `fitted`: the renderer that passes these forms. `notation`: of its calls. About twenty prompts."""
    as_text = None if notation is None else _in_notation(notation)
    chosen: tuple[Form, ...] = ()
    missed: list[_Need] = []
    for need in _NEEDS:
        known = bool(need.after) and need.after in {one.name for one in missed}
        forms = (*need.forms, as_text) if need.name == "calls" and as_text is not None else need.forms
        tried = () if known else (chosen, *((*chosen, form) for form in forms))
        found = next((forms for forms in tried if _writes(fitted(forms), need, forms)), None)
        if found is None:
            missed.append(need)
        else:
            chosen = found
    names = {need.name for need in missed} - {""}
    return chosen, tuple(need.name for need in missed if need.name and need.after not in names)


def _writes(render: Renderer, need: _Need, forms: tuple[Form, ...]) -> bool:
    if (text := tried(render, need.prompt)) is None:
        return False
    if not need.words:
        return PROBE_TOOL.name in text
    history = text[text.find(QUESTION) :]
    # A template that does not know parts writes them in quotes, as Python or JSON do.
    quoted = any(mark + THOUGHTS in history for mark in "'\"")
    written = all(history.count(word) == 1 for word in need.words) and not quoted
    if not need.same_ids:
        return written and PROBE_TOOL.name in history
    passed = need.prompt
    for form in forms:
        passed = form.apply(passed)
    ids = [call["id"] for one in passed.messages for call in one.get("tool_calls", ())]
    return written and all(history.count(own) != 1 for own in ids)
