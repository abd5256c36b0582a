"""The FastAPI application: routes, and errors in the client's dialect.

An ordinary ASGI app that knows no server; `api/serving.py` runs it on ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from api import errors
from api.errors import ApiError
from api.openai.routes import ServedModel, openai_routes
from api.operations import operations_routes
from scheduler.errors import SchedulerError
from scheduler.service import Scheduler


def make_app(
    scheduler: Scheduler, model: ServedModel, *, keep_alive_seconds: float, stall_seconds: float
) -> FastAPI:
    """`/docs` brings its scripts along: it works where there is no network."""
    app: FastAPI = FastAPIOffline(
        title="Penstock", description="Continuous batching for language models on Apple MLX."
    )
    app.include_router(openai_routes(scheduler, model, keep_alive_seconds))
    app.include_router(operations_routes(scheduler, stall_seconds))

    @app.exception_handler(SchedulerError)
    async def scheduler_error(request: Request, error: SchedulerError) -> JSONResponse:
        return _answer(request, errors.from_scheduler(error))

    @app.exception_handler(RequestValidationError)
    async def invalid_body(request: Request, error: RequestValidationError) -> JSONResponse:
        return _answer(request, errors.from_validation(error))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        answer = _answer(request, errors.from_status(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    return app


ERROR_BODIES: dict[str, Callable[[ApiError], dict[str, Any]]] = {
    "/": ApiError.openai_body,
}
"""How a dialect writes an error, by the beginning of its paths; the longest that fits is taken."""


def _answer(request: Request, error: ApiError) -> JSONResponse:
    path = request.url.path
    prefix = max((prefix for prefix in ERROR_BODIES if path.startswith(prefix)), key=len)
    return JSONResponse(ERROR_BODIES[prefix](error), status_code=error.status, headers=error.headers())
