"""The tools of Anthropic's messages API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from api.bodies.body import Body
from api.bodies.fields import JsonObject, WithoutEffect
from api.dialects.anthropic.client_tools import as_custom
from api.dialects.anthropic.content import CACHE, CacheControl
from api.dialects.foreign import name_unread
from api.dialects.openai.tools import STRICT


class CustomTool(Body):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
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
        Any, WithoutEffect("chat templates have no field for them", named_unless=([],))
    ] = None
    allowed_callers: Annotated[Any, WithoutEffect("only the model calls tools")] = None


def as_offered(tools: Any) -> Any:
    """Offer typed tools that a client runs as custom ones. Leave out what only Anthropic's server runs, or
    only its code calls, and what is not known: the offer does not require its use."""
    if not isinstance(tools, list):
        return tools
    kept = []
    for tool in tools:
        if not isinstance(tool, dict):
            kept.append(tool)
            continue
        kind, callers = tool.get("type"), tool.get("allowed_callers")
        if isinstance(callers, list) and callers and "direct" not in callers:
            name_unread(tool, ",".join(map(str, callers)), "allowed_callers")
        elif kind in (None, "custom"):
            kept.append(tool)
        elif (custom := as_custom(tool)) is not None:
            kept.append(custom)
        else:
            name_unread(tool, kind)
    return kept
