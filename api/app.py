"""The FastAPI application: routes, and errors in the client's dialect.

An ordinary ASGI app that knows no server; `api/serving.py` runs it on ours.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from api import errors
from api.errors import ApiError
from api.identity import Identity
from api.openai.routes import ServedModel, openai_routes
from api.operations import operations_routes
from scheduler.errors import SchedulerError
from scheduler.service import Scheduler

EVERYBODY = Identity()
"""One tenant: no keys, no header."""


def make_app(
    scheduler: Scheduler,
    model: ServedModel,
    *,
    keep_alive_seconds: float,
    stall_seconds: float,
    identity: Identity = EVERYBODY,
) -> FastAPI:
    """`/docs` brings its scripts along: it works where there is no network."""
    app: FastAPI = FastAPIOffline(
        title="Penstock", description="Continuous batching for language models on Apple MLX."
    )
    app.include_router(openai_routes(scheduler, model, keep_alive_seconds, identity))
    app.include_router(operations_routes(scheduler, stall_seconds))

    @app.exception_handler(SchedulerError)
    async def scheduler_error(request: Request, error: SchedulerError) -> JSONResponse:
        return _answer(errors.from_scheduler(error))

    @app.exception_handler(RequestValidationError)
    async def invalid_body(request: Request, error: RequestValidationError) -> JSONResponse:
        return _answer(errors.from_validation(error))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        answer = _answer(errors.from_status(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    return app


def _answer(error: ApiError) -> JSONResponse:
    return JSONResponse(error.openai_body(), status_code=error.status, headers=error.headers())
