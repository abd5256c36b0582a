"""LangChain's chat models for OpenAI (both of its protocols) and for Anthropic."""

from __future__ import annotations

from typing import Any

from exchange import ASK, HELLO, server_url, told
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_time(zone: str) -> str:
    """The time in a zone."""
    return "12:00"


def use(way: str, model: Any) -> None:
    chat = model.invoke(HELLO).text
    stream = "".join(chunk.text for chunk in model.stream(HELLO))
    agent = model.bind_tools([get_time])
    messages: list[Any] = [HumanMessage(ASK)]
    first = None
    for chunk in agent.stream(messages):
        first = chunk if first is None else first + chunk
    assert first is not None
    (call,) = first.tool_calls
    messages += [first, ToolMessage(get_time.invoke(call["args"]), tool_call_id=call["id"])]
    told(way, chat=chat, stream=stream, called=call["args"], answer=agent.invoke(messages).text)


openai = {"model": "tiny", "base_url": server_url() + "/v1", "api_key": "unused"}
use("openai", ChatOpenAI(**openai))
use("responses", ChatOpenAI(**openai, use_responses_api=True))
use("anthropic", ChatAnthropic(model="tiny", base_url=server_url(), api_key="unused", max_tokens=500))
