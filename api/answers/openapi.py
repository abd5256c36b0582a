"""What `/openapi.json` says beside the models of bodies: errors in each dialect, and streams."""

from __future__ import annotations

from typing import Any

Responses = dict[int | str, dict[str, Any]]

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"anyOf": [_TEXT, {"type": "null"}]}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _errors(body: dict[str, Any]) -> Responses:
    content = {"application/json": {"schema": body}}
    return {
        "4XX": {"description": "The request is refused", "content": content},
        "5XX": {"description": "The request cannot be served, now or in this time", "content": content},
    }


OPENAI_ERRORS = _errors(
    _object(error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL))
)
ANTHROPIC_ERRORS = _errors(
    _object(type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT)),
)

_EVENT = {**_object(data=_TEXT), "properties": {"event": _TEXT, "data": _TEXT}}


def _streamed(description: str) -> Responses:
    # OpenAPI 3.2's keyword for each event of a stream: some tools read a `schema` as that, others as the
    # whole text's.
    content = {"text/event-stream": {"itemSchema": _EVENT}}
    return {200: {"description": description, "content": content}}


STREAMED = _streamed("The answer; with `stream` true, its events as they come")
"""Used as `router.post(..., responses=STREAMED)`."""
LIVE = _streamed("Events without end: `snapshot` twice a second, `cache` every few seconds")
