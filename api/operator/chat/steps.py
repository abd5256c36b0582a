"""What one entered line does to the conversation, and what is left for the shell to do. No I/O is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from api.operator.chat.commands import Command, Mistake, Question, help_text, read_line
from api.operator.chat.conversation import SETTINGS, Conversation


class Effect(Enum):
    """What the shell does after the conversation has changed."""

    NOTHING = "nothing"
    ASK = "ask"
    """Send the conversation, and show the answer to its last turn."""
    SAVE = "save"
    LOAD = "load"
    SHOW_THINKING = "show thinking"
    QUIT = "quit"


@dataclass(frozen=True, slots=True)
class Step:
    conversation: Conversation
    effect: Effect = Effect.NOTHING
    said: str = ""
    """Lines for the user."""
    is_mistake: bool = False
    path: str = ""
    """Of SAVE and LOAD."""
    overwrite: bool = False


def step(line: str, conversation: Conversation, models: Sequence[str]) -> Step:
    """Return what an entered line does. `models`: those that the server has now."""
    match read_line(line):
        case None:
            return Step(conversation)
        case Question(text=text):
            return Step(conversation.asked(text), Effect.ASK)
        case Mistake(message=message):
            return Step(conversation, said=message, is_mistake=True)
        case Command() as command:
            return _command(command, conversation, models)


def _command(command: Command, conversation: Conversation, models: Sequence[str]) -> Step:
    argument = command.argument
    match command.name:
        case "system":
            said = "system message set" if argument else "no system message"
            return Step(replace(conversation, system=argument), said=said)
        case "model":
            return _model(argument, conversation, models)
        case "set":
            return _set(argument, conversation)
        case "thinking":
            return _thinking(conversation)
        case "retry":
            return _retry(conversation)
        case "clear":
            return Step(replace(conversation, turns=()), said="forgotten")
        case "save" | "load":
            effect = Effect.SAVE if command.name == "save" else Effect.LOAD
            return Step(conversation, effect, path=argument, overwrite=command.forced)
        case "help":
            return Step(conversation, said=help_text())
        case _:
            return Step(conversation, Effect.QUIT)


def _model(name: str, conversation: Conversation, models: Sequence[str]) -> Step:
    if not name:
        marked = [f"{'*' if model == conversation.model else ' '} {model}" for model in models]
        return Step(conversation, said="\n".join(marked) or "the server lists no model")
    if name not in models:
        has = ", ".join(models) or "none"
        return Step(conversation, said=f"the server has no model {name!r}; it has {has}", is_mistake=True)
    return Step(replace(conversation, model=name), said=f"model {name}")


def _set(argument: str, conversation: Conversation) -> Step:
    if not argument:
        chosen = [f"{name} {value}" for name, value in conversation.settings.items()]
        return Step(conversation, said=", ".join(chosen) or f"nothing is set; known: {', '.join(SETTINGS)}")
    name, _, text = (part.strip() for part in argument.replace("=", " ", 1).partition(" "))
    if name not in SETTINGS:
        known = ", ".join(SETTINGS)
        return Step(conversation, said=f"no parameter {name!r}; known: {known}", is_mistake=True)
    if not text:
        value = conversation.settings.get(name, "the model's own")
        return Step(conversation, said=f"{name} {value}")
    others = {key: value for key, value in conversation.settings.items() if key != name}
    if text == "default":
        return Step(replace(conversation, settings=others), said=f"{name}: the model's own")
    try:
        value = SETTINGS[name].read(text)
    except ValueError as error:
        return Step(conversation, said=f"{name} {error}, not {text!r}", is_mistake=True)
    return Step(replace(conversation, settings={**others, name: value}), said=f"{name} {value}")


def _thinking(conversation: Conversation) -> Step:
    reply = conversation.last_reply
    if reply is None or not reply.thinking:
        return Step(conversation, said="the last answer had no thinking")
    return Step(conversation, Effect.SHOW_THINKING)


def _retry(conversation: Conversation) -> Step:
    if not conversation.turns:
        return Step(conversation, said="nothing was asked yet", is_mistake=True)
    return Step(conversation.answered(None), Effect.ASK)
