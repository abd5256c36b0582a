"""LangChain: the messages of one protocol's session are sent by another one's model."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from session import (
    EDIT,
    ELSEWHERE,
    ENOUGH,
    ON,
    PLAIN,
    READ,
    STORY,
    edit_file,
    read_file,
    sessions,
    told,
)

TOOLS = {each.name: each for each in (tool(read_file), tool(edit_file))}


def openai_model(url: str, **more: Any) -> Any:
    return ChatOpenAI(model="tiny", base_url=url + "/v1", api_key="unused", max_retries=0, **more)


def anthropic_model(url: str) -> Any:
    return ChatAnthropic(model="tiny", base_url=url, api_key="unused", max_tokens=100_000, max_retries=0)


def ask(model: Any, messages: list[Any], question: str) -> str:
    messages.append(HumanMessage(question))
    while True:
        message = None
        for chunk in model.stream(messages):
            message = chunk if message is None else message + chunk
        assert message is not None
        messages.append(message)
        if not message.tool_calls:
            return str(message.text)
        messages += [
            ToolMessage(TOOLS[call["name"]].invoke(call["args"]), tool_call_id=call["id"])
            for call in message.tool_calls
        ]


def use(here: Any, elsewhere: Any) -> None:
    model, messages = here.bind_tools([*TOOLS.values()]), list[Any]([HumanMessage(PLAIN)])
    messages.append(model.invoke(messages))
    answers = [messages[-1].text, *(ask(model, messages, question) for question in (READ, EDIT))]
    messages.append(HumanMessage(STORY))
    had, stream = "", model.stream(messages)
    for chunk in stream:
        had += chunk.text
        if ENOUGH in had:
            stream.close()
            break
    messages.append(AIMessage(had))
    answers.append(ask(model, messages, ON))
    answers.append(ask(elsewhere.bind_tools([*TOOLS.values()]), messages, ELSEWHERE))
    told(version=version("langchain-core"), answers=answers, had=had)


for here_url, elsewhere_url, way in sessions():
    match way:
        case "chat":
            use(openai_model(here_url), anthropic_model(elsewhere_url))
        case "responses":
            use(openai_model(here_url, use_responses_api=True), openai_model(elsewhere_url))
        case "messages":
            use(anthropic_model(here_url), openai_model(elsewhere_url, use_responses_api=True))
