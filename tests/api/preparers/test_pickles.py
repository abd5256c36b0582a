"""What is copied between the server and a preparation process, and what stays where it is."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError

from api.body_reading import BodyRejected, Policy, ReadBody, read_body
from api.openai.schema import ChatCompletionRequest
from api.preparers.pickles import (
    HeldBody,
    HeldChat,
    Work,
    dump_error,
    dump_result,
    dump_work,
    load_result,
    load_work,
)
from scheduler import errors
from scheduler.errors import InvalidRequest, PromptTooLong, SchedulerError
from scheduler.prompt.preparation import Preparation
from scheduler.request import ChatPrompt, GenerationRequest, Tool
from tests.api.preparers.service import long_chat
from tests.fakes.memory_preparer import ByteRecipe

SECRET = "what only the process may have"


def passed(value: object) -> tuple[Any, list[object], bytes]:
    """Return a result as the server gets it, what the process holds, and the bytes between them."""
    held: list[object] = []

    def hold(one: object) -> int:
        held.append(one)
        return len(held) - 1

    data = dump_result(value, hold)
    return load_result(data, lambda found: found), held, data


def test_the_messages_of_a_chat_stay() -> None:
    tool = Tool("look", "Look.", {"type": "object"}, strict=True)
    chat = ChatPrompt(({"role": "user", "content": SECRET},), {"a": 1}, (tool,), continue_final=True)
    found, held, data = passed((GenerationRequest("id", chat, max_tokens=3), b"more"))
    request, more = found
    assert (request.public_id, request.max_tokens, more) == ("id", 3, b"more")
    assert isinstance(request.prompt, HeldChat)
    assert held == [chat]
    rest = {"messages": (), **request.prompt.fields}
    assert ChatPrompt(**rest) == ChatPrompt((), {"a": 1}, (tool,), continue_final=True)
    assert SECRET.encode() not in data


def test_the_conversation_of_a_body_stays() -> None:
    text = json.dumps(long_chat(SECRET, temperature=0.5, unknown=1)).encode()
    read = read_body(ChatCompletionRequest, text, Policy(unknown_fields=False, media=False))
    found, held, data = passed(read)
    assert isinstance(found, HeldBody)
    assert found.shell.is_shell
    assert found.shell.ignored == ("unknown",)
    body = found.shell.body
    assert isinstance(body, ChatCompletionRequest)
    assert (body.temperature, body.messages) == (0.5, [])
    assert held == [read.body]
    assert len(read.body.model_dump()["messages"]) == 31
    assert SECRET.encode() not in data
    assert passed(ReadBody(body, (), is_shell=True))[1] == []


def test_a_preparation_is_each_process_own() -> None:
    here, there = ByteRecipe().make(), ByteRecipe().make()
    data = dump_work(Work(Preparation.tokenize, (here, b"x")), {id(here): "tiny"})
    work = load_work(data, {"tiny": there})
    assert work.function is Preparation.tokenize
    assert work.args[0] is there
    assert len(data) < 200


def every_error() -> list[SchedulerError]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    made: list[SchedulerError] = [PromptTooLong(9, 3, 5, param="max_tokens")]
    plain = (kind for kind in kinds if issubclass(kind, SchedulerError) and kind is not PromptTooLong)
    return [*made, *(kind("why", param="field", retry_after_seconds=2.0) for kind in plain)]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_was_raised(error: SchedulerError) -> None:
    again = load_result(dump_error(error), lambda held: held)
    assert type(again) is type(error)
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


def test_an_error_in_a_body_names_its_place_and_has_nothing_else_of_it() -> None:
    body = long_chat(SECRET)
    body["messages"][30]["content"] = 7
    with pytest.raises(BodyRejected) as rejected:
        read_body(ChatCompletionRequest, json.dumps(body).encode(), Policy(False, False))
    data = dump_error(rejected.value)
    assert SECRET.encode() not in data
    again = load_result(data, lambda held: held)
    assert isinstance(again.error, RequestValidationError)
    assert again.error.args == rejected.value.error.args
    assert again.error.__dict__ == rejected.value.error.__dict__
    assert again.error.errors()[0]["loc"][:4] == ("body", "messages", 30, "content")
    assert again.status_code == 400


def test_a_mistake_of_ours_arrives_with_its_stack() -> None:
    def breaks() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError) as caught:
        breaks()
    again = load_result(dump_error(caught.value), lambda held: held)
    assert type(again) is KeyError
    assert "in breaks" in again.__notes__[0]


def test_an_error_that_cannot_be_pickled_arrives_as_its_words() -> None:
    error = InvalidRequest("the words")
    error.param = threading.Lock()  # type: ignore[assignment]
    again = load_result(dump_error(error), lambda held: held)
    assert isinstance(again, RuntimeError)
    assert str(again) == "InvalidRequest: the words"
