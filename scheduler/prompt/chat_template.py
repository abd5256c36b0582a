"""Render a conversation: by the model's Jinja template, or by mlx-lm's program for models without one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import groupby
from types import ModuleType
from typing import Any, TypeAlias

from scheduler.request import ChatPrompt, Message, Reasoning
from scheduler.shared.folder.mlx_lm_module import package_folder

Renderer: TypeAlias = Callable[[ChatPrompt], str]


def renderer(tokenizer: Any, template_type: str | None) -> Renderer | None:
    """Return the renderer of this model's conversations; None if it has no template."""
    asked_for = "chat_template_type" in tokenizer.init_kwargs or tokenizer.chat_template is None
    if template_type is not None and asked_for:
        program = getattr(program_module(template_type), "apply_chat_template", None)
        if program is not None:
            return partial(_run, program)
    return None if tokenizer.chat_template is None else partial(_render, tokenizer)


def tried(render: Renderer, prompt: ChatPrompt) -> str | None:
    """Return a prompt's text, or None where the template raises: it is a program and may raise anything."""
    try:
        return render(prompt)
    except Exception:
        return None


def program_module(name: str) -> Any:
    """Return one of mlx-lm's chat templates, a module with `apply_chat_template` or `RESPONSE_FORMAT`, or
    both. Raise ImportError.

    `import mlx_lm` loads MLX, which the server must not do: it would take GPU memory a second time, and a
    Metal error would end it. So it is imported under another package name, without mlx-lm's `__init__`."""
    package = ModuleType("mlx_lm_without_mlx")
    package.__path__ = [str(package_folder())]
    sys.modules.setdefault(package.__name__, package)
    return import_module(f"{package.__name__}.chat_templates.{name}")


def _render(tokenizer: Any, prompt: ChatPrompt) -> str:
    options = {**_reasoning_options(prompt.reasoning), **prompt.template_options}
    text: str = tokenizer.apply_chat_template(
        list(prompt.messages),
        tools=[tool.definition() for tool in prompt.offered_tools] or None,
        tokenize=False,
        add_generation_prompt=not prompt.continue_final,
        continue_final_message=prompt.continue_final,
        **options,
    )
    return text


def _reasoning_options(reasoning: Reasoning) -> dict[str, Any]:
    """Return the options under the names that templates use; a template ignores unknown ones."""
    options: dict[str, Any] = {}
    if reasoning.enabled is not None:
        # The first for Qwen, GLM and most others, the second for DeepSeek, Granite and Kimi.
        options |= {"enable_thinking": reasoning.enabled, "thinking": reasoning.enabled}
    if reasoning.effort is not None:
        options["reasoning_effort"] = reasoning.effort
    return options


def _run(program: Callable[..., str], prompt: ChatPrompt) -> str:
    """Render with one of mlx-lm's programs, which reject unknown options and take a call's arguments as JSON
    text."""
    options: dict[str, Any] = {"enable_thinking": prompt.reasoning.enabled is not False}
    return program(
        [_with_json_arguments(message) for message in prompt.messages],
        tools=[tool.definition() for tool in prompt.offered_tools] or None,
        add_generation_prompt=not prompt.continue_final,
        continue_final_message=prompt.continue_final,
        **{**options, **prompt.template_options},
    )


def _with_json_arguments(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


JOINT = "\n\n"


Order: TypeAlias = Callable[[tuple[Message, ...]], tuple[Message, ...]]


def orders(messages: tuple[Message, ...]) -> Iterator[Order]:
    """Yield what leaves the messages as sent, and then what brings them in the orders that a template which
    raises may accept: `alternating`, `strict`, and without the system role, which some do not have."""
    seen: list[tuple[Message, ...]] = []
    for order in (tuple, alternating, strict, lambda sent: strict(without_system(alternating(sent)))):
        if (ordered := order(messages)) not in seen:
            seen.append(ordered)
            yield order


def alternating(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages in an order that most templates accept: one system message, first, and no two
    questions in a row.

    Leading system messages are joined; later ones become the user's; neighbouring user messages are joined.
    Agents need this: Claude Code puts a system message after the first question, Codex sends two
    instructions, OpenCode sends two questions in a row. Qwen3.5's template raises on the first two, Gemma's
    and Mistral's on the last. The text and its order stay; only roles change.
    """
    leading = 0
    while leading < len(messages) and messages[leading]["role"] == "system":
        leading += 1
    head = [{"role": "system", "content": _joined_text(messages[:leading])}] if leading else []
    return (*head, *_joined(messages[leading:]))


def strict(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages in the order that the strictest templates accept: `alternating`, with neighbouring
    answers joined, and an empty question before an answer that comes first. Role play begins with
    the character's greeting; frameworks of several agents let two of them speak in turn."""
    ordered = answers_joined(alternating(messages))
    first = next((at for at, message in enumerate(ordered) if message["role"] != "system"), len(ordered))
    if first == len(ordered) or ordered[first]["role"] != "assistant":
        return ordered
    return (*ordered[:first], {"role": "user", "content": ""}, *ordered[first:])


def answers_joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return the messages with neighbours of the assistant's as one: its text and its calls may come as
    two."""
    turns: list[Message] = []
    for role, group in groupby(messages, key=lambda message: message["role"]):
        turn = list(group)
        turns.extend([_one_answer(turn)] if role == "assistant" and len(turn) > 1 else turn)
    return tuple(turns)


def _one_answer(turn: Sequence[Message]) -> Message:
    spoken = [message for message in turn if message.get("content")]
    answer = {**turn[0], "content": _joined_text(spoken) if spoken else ""}
    if thoughts := [message["reasoning_content"] for message in turn if message.get("reasoning_content")]:
        answer["reasoning_content"] = JOINT.join(thoughts)
    if calls := [call for message in turn for call in message.get("tool_calls") or ()]:
        answer["tool_calls"] = calls
    return answer


def without_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages with the system message, if there is one, moved to the beginning of the first user
    message: Gemma 2's template has no system role."""
    if not messages or messages[0]["role"] != "system":
        return messages
    system, *rest = messages
    if rest and rest[0]["role"] == "user":
        return ({**rest[0], "content": _joined_text((system, rest[0]))}, *rest[1:])
    return ({"role": "user", "content": system["content"]}, *rest)


def _joined(messages: Iterable[Message]) -> list[Message]:
    turns: list[Message] = []
    for is_users, group in groupby(messages, key=lambda message: message["role"] in ("system", "user")):
        turn = list(group)
        if is_users:
            turns.append({**turn[0], "role": "user", "content": _joined_text(turn)})
        else:
            turns.extend(turn)
    return turns


def _joined_text(messages: Iterable[Message]) -> Any:
    """Return the texts of neighbours as one; as parts, if the template reads any of them as parts."""
    contents = [message["content"] for message in messages]
    text = JOINT.join([each for content in contents for each in _texts(content)])
    return text if all(isinstance(each, str) for each in contents) else [{"type": "text", "text": text}]


def _texts(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content]
