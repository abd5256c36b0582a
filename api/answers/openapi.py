"""What `/openapi.json` says beside the models of bodies: errors in each dialect, streams, and a sentence for
each operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

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


def in_sentences(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """Return what makes the application's description. The line of an operation in `/docs` is the first
    sentence of its docstring; FastAPI would take the function's name."""
    make = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            for operations in make()["paths"].values():
                for operation in operations.values():
                    text = " ".join(operation.pop("description", "").split())
                    first, _, rest = text.partition(". ")
                    operation["summary"] = first.replace("`", "").removesuffix(".") + "."
                    if rest:
                        operation["description"] = rest
        return make()

    return described


_SCRIPTS = "/static-offline-docs"
_THEME = b"""<script>
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.onchange = follow; follow();
</script>"""
"""The page's style sheet has a dark theme, behind a class that nobody sets."""


def add_docs(app: FastAPI) -> None:
    """Serve `/docs` in the reader's theme, with the operations before the many schemas of bodies."""

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        page = get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=f"{app.title} {app.version}",
            swagger_js_url=f"{root}{_SCRIPTS}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{_SCRIPTS}/swagger-ui.css",
            swagger_favicon_url=f"{root}{_SCRIPTS}/favicon.png",
            swagger_ui_parameters={"defaultModelsExpandDepth": 0},
        )
        return HTMLResponse(bytes(page.body).replace(b"<head>", b"<head>" + _THEME))
