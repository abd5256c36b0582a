"""What only tells of the conversation is never refused: it would be refused again with every later turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from anthropic.types import ContentBlock
from anthropic.types.beta import BetaContentBlock, BetaContentBlockParam
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam, ResponseItem, ResponseOutputItem
from pydantic import TypeAdapter

from api.bodies.unknown_fields import UnknownFields
from api.dialects.anthropic import decode as anthropic_decode
from api.dialects.anthropic.schema import MessagesRequest
from api.dialects.openai import decode as chat_decode
from api.dialects.openai.schema import ChatCompletionRequest
from api.dialects.responses.conversation import input_messages
from api.dialects.responses.items import InputItem, TaggedItem
from api.dialects.responses.schema import CreateResponse
from tests.api.histories import NEXT_YEAR, disturbed, samples

ASKED = {"role": "user", "content": "What now?"}
STORED: InputItem = TypeAdapter(TaggedItem).validate_python({"role": "assistant", "content": "stored"})


def items() -> Iterator[Any]:
    for item in samples(ResponseInputItemParam):
        # It asks for something, and is refused.
        if item.get("type") != "compaction_trigger":
            yield item
    yield NEXT_YEAR
    yield {"type": "next_year_call", "call_id": "c", "what": {"ever": "x" * 100_000}}
    yield {"type": "next_year_call_output", "call_id": "c", "output": {"any": [1, None]}}


def messages() -> Iterator[Any]:
    yield from samples(ChatCompletionMessageParam)
    yield {"role": "assistant", "content": [NEXT_YEAR], "tool_calls": [{"id": "1", **NEXT_YEAR}]}
    yield {"role": "critic", "content": "no"}


def read_items(history: list[Any]) -> list[dict[str, Any]]:
    with UnknownFields().noting():
        body = CreateResponse.model_validate({"input": [*history, ASKED]})
    return list(input_messages(body.input, lambda item_id: STORED))


def read_messages(history: list[Any]) -> list[dict[str, Any]]:
    with UnknownFields().noting():
        body = ChatCompletionRequest.model_validate({"messages": [*history, ASKED]})
    prompt: Any = chat_decode.generation_request(body).prompt
    return list(prompt.messages)


def read_turns(history: list[Any]) -> list[dict[str, Any]]:
    with UnknownFields().noting():
        body = MessagesRequest.model_validate({"max_tokens": 4, "messages": [*history, ASKED]})
    prompt: Any = anthropic_decode.generation_request(body).prompt
    return list(prompt.messages)


def check(rendered: list[dict[str, Any]]) -> None:
    """What templates take: known roles, texts, calls with a name and an object."""
    assert rendered[-1] == ASKED
    for message in rendered:
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)
        for call in message.get("tool_calls", ()):
            assert call["function"]["name"]
            assert isinstance(call["function"]["arguments"], dict)
    json.dumps(rendered)


def of_one(item: Any) -> str:
    return f"{item.get('role') or ''}{item.get('type') or ''}"


@pytest.mark.parametrize("kind", sorted({of_one(item) for item in items()}))
def test_no_item_of_a_conversation_is_refused(kind: str) -> None:
    """Each that the API knows, in each of its forms, disturbed in each place."""
    for item in items():
        if of_one(item) == kind:
            check(read_items([item]))
            for other in disturbed(item, kept=("role",)):
                # A reference is an id, and an item without type is a message or a reference.
                if other.get("type") != "item_reference" and ("type" in other or "role" in other):
                    check(read_items([other]))


@pytest.mark.parametrize("role", sorted({of_one(message) for message in messages()}))
def test_no_message_of_a_chat_is_refused(role: str) -> None:
    """Likewise, and a role of next year."""
    for message in messages():
        if of_one(message) == role:
            check(read_messages([message]))
            for other in disturbed(message, kept=("role",)):
                check(read_messages([other]))


def turns_of(block: Any) -> list[Any]:
    """A block in messages of the roles that it may have: the last one is the user's again."""
    role = {"tool_result": "user", "tool_addition": "system", "tool_removal": "system"}
    content = {"role": role.get(block["type"], "assistant"), "content": [block]}
    return [ASKED, content, {"role": "assistant", "content": "yes"}]


def blocks() -> Iterator[Any]:
    yield from samples(BetaContentBlockParam)
    yield from samples(ContentBlock)
    yield NEXT_YEAR


def uncited(value: Any) -> Any:
    """Return `value` without citations that a client asks for, which are refused by name."""
    if isinstance(value, dict):
        kept = {
            name: member for name, member in value.items() if name != "citations" or isinstance(member, list)
        }
        return {name: uncited(member) for name, member in kept.items()}
    return [uncited(member) for member in value] if isinstance(value, list) else value


BLOCK_TYPES = sorted({block["type"] for block in blocks()})


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_no_block_of_a_message_is_refused(kind: str) -> None:
    """Each that Anthropic's API knows, in each of its forms, disturbed in each place."""
    forms = [uncited(block) for block in blocks() if block["type"] == kind]
    texts = sorted({json.dumps(other) for block in forms for other in disturbed(block, kept=("type",))})
    for text in texts[:: 1 + len(texts) // 1000]:
        check(read_turns(turns_of(json.loads(text))))


@pytest.mark.parametrize("role", ["user", "assistant", "system", "critic"])
def test_no_message_of_anthropics_is_refused(role: str) -> None:
    """Whatever its content is, and of any role."""
    for other in disturbed({"role": role, "content": [{"type": "text", "text": "a"}]}, kept=("role",)):
        check(read_turns([ASKED, other, {"role": "assistant", "content": "yes"}]))


ANSWERS = (
    (ResponseOutputItem, lambda item: read_items([item])),
    (ResponseItem, lambda item: read_items([item])),
    (ChatCompletionMessage, lambda message: read_messages([message])),
    (ContentBlock, lambda block: read_turns(turns_of(block))),
    (BetaContentBlock, lambda block: read_turns(turns_of(block))),
)
SAID_IN = ("text", "output_text", "input_text", "refusal", "reasoning_text")


def words_in(value: Any) -> Iterator[str]:
    """Yield the words of the blocks of text in `value`."""
    if isinstance(value, dict):
        if value.get("type") in SAID_IN:
            yield from (value[name] for name in ("text", "refusal") if isinstance(value.get(name), str))
        for member in value.values():
            yield from words_in(member)
    elif isinstance(value, list):
        for member in value:
            yield from words_in(member)


def worded(value: Any, words: Iterator[str]) -> Any:
    """Return `value` with words of their own in place of its texts."""
    if isinstance(value, dict):
        return {name: worded(member, words) for name, member in value.items()}
    if isinstance(value, list):
        return [worded(member, words) for member in value]
    return next(words) if value == "text" else value


@pytest.mark.parametrize(("answer", "read"), ANSWERS, ids=range(len(ANSWERS)))
def test_what_another_server_answered_is_history_here(answer: Any, read: Any) -> None:
    """Every type of the installed clients' answers, in every form, as it was and disturbed: no refusal, and
    the words of its texts arrive in the prompt."""
    for form in samples(answer):
        # `type` and `role` may be "text", too.
        kept = {name: form[name] for name in ("type", "role") if name in form}
        item = {**worded(form, (f"word{number}" for number in count())), **kept}
        rendered = read(item)
        check(rendered)
        prompt = json.dumps(rendered)
        assert [word for word in words_in(item) if word not in prompt] == [], item
