"""Decoding of Anthropic bodies to neutral requests."""

from __future__ import annotations

from typing import Any

from api.access.identity import Caller
from api.dialects.anthropic.decode import chat_prompt, generation_request
from api.dialects.anthropic.schema import CountTokensRequest, MessagesRequest
from scheduler.request import Hold, ToolChoice
from tests.api.dialects.test_anthropic_messages import TOOLS, ask_for


def prompt_of(**fields: Any) -> Any:
    body = {name: value for name, value in ask_for(**fields).items() if name != "max_tokens"}
    return chat_prompt(CountTokensRequest.model_validate(body))


def test_messages_become_what_templates_take() -> None:
    """System blocks joined, reasoning beside the text, calls with their input as an object, results as
    messages of their own, consecutive messages of one role as one turn."""
    prompt = prompt_of(
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "one"},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "redacted_thinking", "data": "..."},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "r"}]},
                    {"type": "text", "text": "that was one"},
                    {"type": "tool_result", "tool_use_id": "t2", "is_error": True},
                    {"type": "text", "text": "go on"},
                ],
            },
        ],
    )
    function = {"name": "f", "arguments": {"a": 1}}
    assert prompt.messages == (
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one\n\ntwo"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "r"},
        {"role": "user", "content": "that was one"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
        {"role": "user", "content": "go on"},
    )
    assert not prompt.continue_final


def test_a_last_assistant_message_is_continued() -> None:
    """Anthropic's prefill."""
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "{"}]
    assert prompt_of(messages=turns).continue_final


def test_tool_choice_and_thinking_become_neutral() -> None:
    """As far as the neutral request has them."""
    chosen = prompt_of(tools=TOOLS, tool_choice={"type": "none"}, thinking={"type": "disabled"})
    assert (chosen.tool_choice, chosen.offered_tools) == (ToolChoice.NONE, ())
    assert chosen.reasoning.enabled is False
    one = prompt_of(
        tools=TOOLS,
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high"},
    )
    assert not one.parallel_tool_calls
    assert (one.reasoning.enabled, one.reasoning.effort) == (True, "high")
    (tool,) = one.offered_tools
    assert (tool.name, tool.description, tool.parameters) == (
        "get_time",
        "The time",
        TOOLS[0]["input_schema"],
    )


def test_sampling_is_the_bodys() -> None:
    body = MessagesRequest.model_validate(ask_for(temperature=0, top_p=0.5, top_k=7, stop_sequences=["x"]))
    request = generation_request(body, caller=Caller("farm"))
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0, 0.5, 7)
    assert (request.max_tokens, request.stop, request.tenant) == (1000, ("x",), "farm")


def test_a_time_to_live_is_a_hold_up_to_its_message() -> None:
    """Each time counts up to its last place. A mark in the system prompt or on a tool counts to the first
    message, one on the body for all of it, and one without a ttl for nothing."""

    def text(said: str, ttl: str | None = None) -> dict[str, Any]:
        control = {"type": "ephemeral"} if ttl is None else {"type": "ephemeral", "ttl": ttl}
        return {"type": "text", "text": said, "cache_control": control}

    def holds(**fields: Any) -> tuple[Hold, ...]:
        return generation_request(MessagesRequest.model_validate(ask_for(**fields))).holds

    results = [
        {
            "type": "tool_result",
            "tool_use_id": "t1",
            "content": "r",
            "cache_control": text("", "5m")["cache_control"],
        },
        {"type": "tool_result", "tool_use_id": "t2", "content": "r"},
    ]
    calls = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {}} for n in (1, 2)]
    turns = [
        {"role": "user", "content": [text("one", "5m")]},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": [text("plain")]},
    ]
    assert holds(messages=turns) == (Hold(4, 300.0),)
    assert holds(messages=turns, system=[text("be kind", "1h")]) == (Hold(1, 3600.0), Hold(5, 300.0))
    assert holds(messages=turns[-1:]) == ()
    inner = {"type": "tool_result", "tool_use_id": "t1", "content": [text("r", "5m")]}
    nested = [*turns[1:2], {"role": "user", "content": [inner]}]
    assert holds(messages=nested) == (Hold(2, 300.0),)
    everything = {"type": "ephemeral", "ttl": "1h"}
    assert holds(messages=turns[-1:], cache_control=everything) == (Hold(None, 3600.0),)
