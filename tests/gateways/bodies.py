"""Bodies in each dialect, with the fields that clients send and those that only vLLM's do."""

from __future__ import annotations

from typing import Any

MESSAGES = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"zone": {"type": "string"}}}
FUNCTION = {"name": "get_time", "description": "The time.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": "I look.", "reasoning_content": "A clock.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]},
]
SCHEMA = {"type": "object", "properties": {"hour": {"type": "integer"}}, "required": ["hour"]}
HELD = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
SAMPLING: dict[str, Any] = {
    **{"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "priority": 3},
    **{"presence_penalty": 0.1, "frequency_penalty": 0.2, "stop": ["zz"]},
}
VLLMS: dict[str, Any] = {
    **{"seed": 7, "stop_token_ids": [3], "cache_salt": "mine", "timeout": 100, "min_tokens": 1},
    **{"logit_bias": {"65": 1}},
}
ASKED_TIME = [{"role": "user", "content": "What time is it?"}]
CLAUDES_TURNS = [
    *ASKED_TIME,
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "A clock.", "signature": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "get_time", "input": {"zone": "UTC"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "12:00"}]},
            {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}},
        ],
    },
]
CLAUDES_TOOLS = [{"name": "get_time", "description": "The time.", "input_schema": PARAMETERS}]
CLAUDES: dict[str, Any] = {
    **{"messages": CLAUDES_TURNS, "tools": CLAUDES_TOOLS, "max_tokens": 2048, "top_k": 5},
    **{"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
    **{"thinking": {"type": "enabled", "budget_tokens": 1024}, "stop_sequences": ["zz"]},
}
ITEMS = [
    {"role": "developer", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What time is it?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "A"}]},
    {"type": "function_call", "call_id": "c1", "name": "get_time", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
]
RESPONSES: dict[str, Any] = {
    **{"instructions": "Be kind.", "reasoning": {"effort": "low"}, "max_output_tokens": 200},
    **{"include": ["message.output_text.logprobs"], "top_logprobs": 2, "metadata": {"a": "b"}},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
}
FUNCTIONS = [{"type": "function", **FUNCTION}]

CHAT, TEXT, ITEMWISE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CLAUDE, COUNT = "/v1/messages", "/v1/messages/count_tokens"
COUNTED = {name: CLAUDES[name] for name in ("messages", "tools", "system")}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": MESSAGES}),
    "chat, sampled": (CHAT, {"messages": MESSAGES, **SAMPLING, **VLLMS}),
    "chat, n": (CHAT, {"messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2, "user": "u"}),
    "chat, a call required": (CHAT, {"messages": ASKED_TIME, "tools": TOOLS, "tool_choice": "required"}),
    "chat, turns": (CHAT, {"messages": TURNS, "tools": TOOLS, "parallel_tool_calls": False}),
    "chat, schema": (CHAT, {"messages": MESSAGES, "response_format": HELD}),
    "completions": (TEXT, {"prompt": "Hello", "max_tokens": 5, "logprobs": 1, **SAMPLING, **VLLMS}),
    "responses": (ITEMWISE, {"input": "Hello"}),
    "responses, held": (ITEMWISE, {"input": "Hello", **RESPONSES, **SAMPLING}),
    "responses, turns": (ITEMWISE, {"input": ITEMS, "tools": FUNCTIONS}),
    "messages, turns": (CLAUDE, CLAUDES),
}
