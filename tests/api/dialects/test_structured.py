"""Which constraint of an answer a body asks for, in OpenAI's field and in vLLM's."""

from __future__ import annotations

from typing import Any

import pytest

from api.dialects.openai.schema import ChatCompletionRequest
from api.dialects.openai.structured import structure

SCHEMA = {"type": "object"}


def asked(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "a"}], **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"structured_outputs": {}}, "send one of json"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "send only one"),
    ],
)
def test_none_and_two_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        structure(asked(**fields))
