"""What cannot be answered is refused by the field's name: 400 in its dialect's shape, and nothing queued."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.client import refused

ASKED = [{"role": "user", "content": "x"}]
TOOLS = [{"type": "function", "name": "get_time", "parameters": {"type": "object"}}]
PREDICATE = {"type": "predicate", "instructions": "The customer is angry."}
CHOICE = {"type": "choice", "instructions": "Which team?", "choices": [{"value": "a"}, {"value": "b"}]}
SCORED = {"echo": True, "logprobs": 5, "stream": False}
LABELS = {"query": "q", "items": ["a"], "label_token_ids": [65]}
NOT_NULL = {"items": {"not": {"type": "null"}}}
USED = [{"role": "user", "content": [{"type": "tool_use", "name": "f"}]}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": ASKED},
    "completions": {"prompt": "x"},
    "responses": {"input": "x"},
    "messages": {"messages": ASKED, "max_tokens": 9, "model": "tiny"},
    "embeddings": {},
    "rerank": {"query": "a fruit", "documents": ["a"]},
    "score": {},
    "decisions": {"input": "x", "questions": [PREDICATE]},
    "systemone": {"state": "x", "questions": {"q": {"type": "noul"}}},
    "tokenize": {},
    "detokenize": {},
}
REPETITION = "repetition_detection"
STREAMED = ("chat/completions", "completions", "responses", "messages")


def choices(*values: Any, **more: Any) -> dict[str, Any]:
    return {"questions": [{**CHOICE, "choices": [{"value": value} for value in values], **more}]}


def format_of(**schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "name": "x", "strict": True, "schema": schema}


REFUSED: dict[str, list[tuple[dict[str, Any], str, str]]] = {
    "chat/completions": [
        ({"structured_outputs": {}}, "", "structured_outputs: send one of json"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "", "differ: send only one"),
        ({"stream_options": {}, "stream": False}, "", "stream_options needs stream"),
        ({REPETITION: {"max_pattern_size": 4}}, REPETITION, "min_count"),
        ({REPETITION: {"max_pattern_size": 4, "min_count": 2, "min_pattern_size": 5}}, REPETITION, "at most"),
    ],
    "completions": [
        ({"logprobs": 0, "echo": True, "stream": True}, "logprobs", "with echo: true it needs"),
        ({"min_tokens": 17}, "min_tokens", "at most"),
        ({"max_tokens": 0}, "", "max_tokens: 0 needs echo: true"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens", "at most"),
        ({"prompt": None}, "prompt", "required"),
        ({"prompt": []}, "prompt", "send a text"),
        ({"prompt": ["x", ""]}, "prompt", "empty"),
        ({"prompt": [1, "a"]}, "prompt", "each prompt"),
        ({"prompt": [9999], "echo": True}, "prompt", "vocabulary of 8192"),
        ({"prompt": ["x"] * 257}, "prompt", "at most 256"),
        ({**SCORED, "prompt": "x" * 12_000, "n": 4}, "logprobs", "at most"),
        ({**SCORED, "prompt": ["x" * 2_000] * 70}, "logprobs", "at most"),
    ],
    "responses": [
        ({"input": []}, "", "send input"),
        ({"input": {}}, "input", "list"),
        ({"input": [{"type": "message", "content": "x"}]}, "input.0.role", "required"),
        ({"input": [{"type": "compaction_trigger"}]}, "input.0", "summarizes no conversations"),
        ({"conversation": "conv_1"}, "conversation", "send previous_response_id"),
        ({"tools": [{"type": "custom", "name": "x", "format": {"type": "a"}}]}, "tools.0.format", ""),
        ({"tools": [*TOOLS, *TOOLS]}, "", "two tools have the name 'get_time'"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice", "cannot run 'file_search'"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "no tools"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "'json_schema'"),
        ({"text": {"format": format_of(**NOT_NULL)}}, "text.format.schema.items.not", ""),
        ({"background": True, "store": False}, "", "background: needs `store`"),
        ({"max_output_tokens": 50_000}, "max_tokens", "context"),
    ],
    "messages": [
        ({"max_tokens": None}, "", "max_tokens: "),
        ({"messages": [{"role": "user", "content": [5]}]}, "", "messages.0.content.0: "),
        ({"messages": USED}, "", "cannot contain tool_use"),
        ({"tool_choice": {"type": "any"}}, "", "tool_choice: there are no tools to call"),
        ({"tool_choice": {"type": "tool"}}, "", "tool_choice: type 'tool' needs a name"),
        ({"output_config": {"format": format_of(type="objekt")}}, "", "output_config.format.schema.type: "),
        ({"max_tokens": 50_000}, "", "exceed context limit: 19 + 50000 > 40960, "),
    ],
    "embeddings": [
        ({}, "input", "required"),
        ({"input": {"text": "a"}}, "input", "send a text"),
        ({"input": ["a", None]}, "input", "text or a list of token ids"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"input": "a", "dimensions": 3}, "model", "/v1/chat/completions"),
    ],
    "rerank": [
        ({"documents": [1]}, "documents.0", "valid dictionary"),
        ({"documents": [{"title": "x"}]}, "documents.0.text", "required"),
        ({"documents": ["a"] * 2049}, "documents", "at most 2048"),
    ],
    "score": [
        ({}, "", "send one of text_1"),
        ({"text_1": "a"}, "", "and one of text_2"),
        ({"text_1": "a", "queries": "b", "text_2": "c"}, "", "send one of text_1"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "", "text_1 has 2 texts"),
        ({"text_1": ["a"], "text_2": [[1]]}, "", "text_1 and text_2 must be texts"),
        ({"text_1": [[1]], "text_2": ["a"]}, "", "text_1 and text_2 must be texts"),
        ({"text_1": "a" * 40_000, "text_2": "b"}, "", "more than 32768 characters"),
        ({"query": "a", "items": ["b"]}, "", "need each other"),
        ({"text_1": "a", "text_2": "b", "label_token_ids": [1]}, "", "need each other"),
        ({**LABELS, "items": [[5]]}, "", "query and items must be texts"),
        ({**LABELS, "query": [5]}, "", "query and items must be texts"),
        ({**LABELS, "label_token_ids": [1] * 65}, "label_token_ids", "at most 64"),
        ({**LABELS, "label_token_ids": [10**9]}, "label_token_ids", "outside the vocabulary"),
        ({**LABELS, "query": [5], "items": [[-1]]}, "items", "items names token -1"),
        ({**LABELS, "query": "", "items": [""]}, "items", "the prompt is empty"),
        ({**LABELS, "query": "x" * (1 << 18) + "x"}, "query", "at most 262144"),
    ],
    "decisions": [
        ({"questions": [PREDICATE] * 401}, "questions", "at most 400"),
        (choices("a"), "questions.0.choices", "at least 2"),
        (choices("a", "a"), "questions.0.choices", "two choices have one value"),
        (choices("", "a"), "questions.0.choices", "a choice is empty"),
        (choices(1, "a"), "questions.0.choices.0.value", ""),
        (choices(*map(str, range(256))), "questions.0.choices", "at most 255"),
        (choices("a", "b", instructions=""), "questions.0.instructions", "at least 1"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", "'msg_1'"),
    ],
    "systemone": [
        ({"questions": {"q": {"type": "choice", "criteria": {"": ""}}}}, "questions.q.criteria.", ""),
    ],
    "tokenize": [
        ({}, "", "send either prompt or messages"),
        ({"prompt": "x", "messages": ASKED}, "", "send either prompt or messages"),
        ({"messages": ASKED, "continue_final_message": True}, "", "only a last message"),
        ({"messages": ASKED, "chat_template_kwargs": {"tools": 1}}, "", "cannot set 'tools'"),
        ({"messages": ASKED, "add_special_tokens": True}, "", "add_special_tokens"),
    ],
    "detokenize": [
        ({"tokens": [9999]}, "tokens", "vocabulary"),
    ],
}
CASES = [(path, *case) for path, cases in REFUSED.items() for case in cases]


@pytest.mark.parametrize(("path", "fields", "param", "words"), CASES)
def test_a_bad_field_is_refused_by_name(path: str, fields: dict[str, Any], param: str, words: str) -> None:
    """Whether it asks for a stream or not."""
    where = f"/v1/{path}"
    for stream in ({}, {"stream": True}) if path in STREAMED else ({},):
        error = refused(where, {**BODIES[path], **stream, **fields})
        assert (error.get("param") or "") == param
        assert words in error["message"]
