"""Which constraint of an answer a body asks for, in OpenAI's field and in vLLM's."""

from __future__ import annotations

from typing import Any

import pytest

from api.dialects.openai.schema import ChatCompletionRequest
from api.dialects.openai.structured import structure
from scheduler.structure import JsonText

SCHEMA = {"type": "object"}


def asked(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "a"}], **fields})


def test_white_space_of_one_notation_holds_for_the_schema_of_the_other() -> None:
    found = structure(
        asked(
            response_format={"type": "json_schema", "schema": SCHEMA},
            structured_outputs={"whitespace_pattern": "[ ]?"},
        )
    )
    assert isinstance(found, JsonText)
    assert found.white_space is not None
    assert (found.schema, found.white_space.regex) == (SCHEMA, "[ ]?")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"structured_outputs": {"whitespace_pattern": "[ ]?"}}, "send one of json"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "send only one"),
    ],
)
def test_none_and_two_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        structure(asked(**fields))
