"""The tools of Anthropic's messages API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from api.bodies.body import Body
from api.bodies.fields import JsonObject, Listed, Refused, WithoutEffect
from api.dialects.anthropic.content import CACHE, CacheControl
from api.dialects.foreign import name_unread
from api.dialects.openai.tools import STRICT


class CustomTool(Body):
    """A tool that the client runs. Anthropic's own tools have other types: those that its server would run
    are left out of the prompt, and named; those that the client would run are refused by type."""

    type: Annotated[
        Literal["custom"] | None,
        Refused("only tools that the client runs are supported", neutral=("custom",)),
    ] = None
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: JsonObject
    cache_control: Annotated[CacheControl | None, CACHE] = None
    strict: Annotated[StrictBool | None, STRICT] = None
    eager_input_streaming: Annotated[
        StrictBool | None, WithoutEffect("arguments always stream as soon as the model's syntax allows")
    ] = None
    defer_loading: Annotated[
        StrictBool | None,
        WithoutEffect("the server has no tool search: every tool is offered at once"),
    ] = None
    input_examples: Annotated[
        Listed[Any] | None, Refused("chat templates have no field for them: put them into the description")
    ] = None
    allowed_callers: Annotated[
        Listed[str] | None, Refused("only the model calls tools", neutral=(["direct"],))
    ] = None


_HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_")


def is_hosted(tool: dict[str, Any]) -> bool:
    kind = tool.get("type")
    return isinstance(kind, str) and kind.startswith(_HOSTED)


def without_hosted(tools: Any) -> Any:
    """Leave out what only Anthropic's server runs: the offer does not require its use."""
    if not isinstance(tools, list):
        return tools
    kept = []
    for tool in tools:
        if isinstance(tool, dict) and is_hosted(tool):
            name_unread(tool, tool["type"], known=True)
        else:
            kept.append(tool)
    return kept
