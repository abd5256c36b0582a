"""Strict readers of streams of named events, what they add up to, and the answers of every dialect."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.api.client import events as unnamed_events


def named_events(body: str) -> list[dict[str, Any]]:
    """Return the data of each event, whose name its type repeats. Comments are omitted."""
    found: list[dict[str, Any]] = []
    for block in body.split("\n\n"):
        if not (lines := [line for line in block.split("\n") if not line.startswith(":")]) or not block:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    assert body.endswith("\n\n")
    return found


DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return Anthropic's message: one block at a time, counted from 0, between message_start and
    message_stop."""
    start, *middle, delta, stop = [event for event in events if event["type"] != "ping"]
    assert (start["type"], delta["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    message: dict[str, Any] = dict(start["message"])
    assert message["content"] == []
    content: list[dict[str, Any]] = []
    is_open, arguments = False, ""
    for event in middle:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(content)
                content.append(dict(event["content_block"]))
                is_open, arguments = True, ""
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(content) - 1
                piece = event["delta"]
                if piece["type"] == "input_json_delta":
                    arguments += piece["partial_json"]
                else:
                    content[-1][DELTAS[piece["type"]]] += piece[DELTAS[piece["type"]]]
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(content) - 1
                is_open = False
                if content[-1]["type"] == "tool_use":
                    content[-1]["input"] = json.loads(arguments)
            case other:
                raise AssertionError(other)
    assert not is_open
    return {**message, "content": content, **delta["delta"], "usage": delta["usage"]}


def response_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return OpenAI's response: the events of each item must agree with the last event."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, progress, *middle, last = events
    assert (created["type"], progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    response: dict[str, Any] = last["response"]
    assert response["id"] == created["response"]["id"]
    items: list[dict[str, Any]] = []
    text, is_open = "", False
    for event in middle:
        name = event["type"].removeprefix("response.")
        if name == "output_item.added":
            assert not is_open
            assert event["output_index"] == len(items)
            items.append(event["item"])
            text, is_open = "", True
            assert event["item"]["status"] == "in_progress"
            continue
        assert is_open
        assert event["output_index"] == len(items) - 1
        if "item_id" in event:
            assert event["item_id"] == items[-1]["id"]
        if name.endswith(".delta"):
            text += event["delta"]
        elif name in ("output_text.done", "reasoning_text.done", "reasoning_summary_text.done"):
            assert event["text"] == text
        elif name == "function_call_arguments.done":
            assert event["arguments"] == text
        elif name == "custom_tool_call_input.done":
            assert event["input"] == text
        elif name == "output_item.done":
            assert event["item"]["id"] == items[-1]["id"]
            items[-1] = event["item"]
            is_open = False
        else:
            assert name.removeprefix("reasoning_summary_").removeprefix("content_") in (
                "part.added",
                "part.done",
            )
    assert not is_open
    assert response["output"] == items
    return response


@dataclass(slots=True)
class Answer:
    """A choice's text, why it ended, the stop string that its dialect names, and our mark beside that."""

    text: str = ""
    reason: str | None = None
    stop_string: str | None = None
    mark: Any = None


def answers_of(path: str, body: str, *, streams: bool) -> list[Answer]:
    """Return the choices of an answer of text in any dialect, whole or streamed."""
    match path:
        case "/v1/messages":
            found = named_events(body) if streams else [json.loads(body)]
            message = message_of(found) if streams else found[0]
            text = "".join(block["text"] for block in message["content"])
            mark = found[-2 if streams else 0].get("penstock")
            return [Answer(text, message["stop_reason"], message["stop_sequence"], mark)]
        case "/v1/responses":
            response = response_of(named_events(body)) if streams else json.loads(body)
            text = "".join(part["text"] for part in response["output"][0]["content"])
            reason = (response["incomplete_details"] or {}).get("reason")
            return [Answer(text, reason, None, response.get("penstock"))]
        case _:
            choices: dict[int, Answer] = {}
            for chunk in unnamed_events(body)[:-1] if streams else [json.loads(body)]:
                for choice in chunk["choices"]:
                    answer = choices.setdefault(choice["index"], Answer())
                    piece = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
                    answer.text += piece.get("content") or ""
                    answer.reason, answer.mark = choice["finish_reason"], choice.get("penstock")
            return list(choices.values())
