"""The FastAPI application: routes, and errors in the client's dialect.

A plain ASGI app that depends on no server; `api/serving.py` runs it on Penstock's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Scope

from api.access.allowed_hosts import ANY_HOST, EVERY, AllowedHosts
from api.access.api_keys import ApiKeys
from api.access.auth import Authentication, is_open
from api.access.identity import Identity
from api.access.request_origin import APPLICATION_ORIGINS, OriginCheck, origin_pattern
from api.admin.cache import cache_routes
from api.admin.live import live_routes
from api.admin.metrics import HttpMetrics, metrics_routes
from api.admin.operations import loading_routes, operations_routes, probe_routes
from api.answers import errors
from api.answers.errors import ApiError, ApiFailure
from api.answers.openapi import ANTHROPIC_ERRORS, OPENAI_ERRORS
from api.bodies.unknown_fields import HEADER as IGNORED_FIELDS_HEADER
from api.dialects.anthropic.routes import anthropic_routes
from api.dialects.completions.routes import completions_routes
from api.dialects.decisions.routes import decision_routes
from api.dialects.embeddings import embedding_routes
from api.dialects.json_route import ModelPlaces
from api.dialects.openai.routes import openai_routes
from api.dialects.responses.routes import responses_routes
from api.dialects.responses.running import RunningResponses
from api.dialects.responses.store import ResponseStore
from api.dialects.scores.routes import score_routes
from api.dialects.tokenization import tokenization_routes
from api.http.request_id import SCOPE_KEY, RequestIds, echoed
from api.http.statistics import ServerStatistics
from api.served_models import ServedModels
from api.version import PACKAGE, release_of
from scheduler.errors import SchedulerError

_NO_KEYS = ApiKeys()
EVERYBODY = Identity()
"""The tenant of all requests where there are neither keys nor a tenant header."""


def make_app(
    models: ServedModels,
    *,
    keep_alive_seconds: float = 15.0,
    stall_seconds: float = 120.0,
    keys: ApiKeys = _NO_KEYS,
    cors_origins: Sequence[str] = (),
    hosts: AllowedHosts = ANY_HOST,
    identity: Identity = EVERYBODY,
    responses: ResponseStore | None = None,
    running: RunningResponses | None = None,
    server: Callable[[], ServerStatistics] | None = None,
    reports: Mapping[str, Callable[[], dict[str, Any]]] = MappingProxyType({}),
) -> FastAPI:
    """Make the application. `/docs` brings its own scripts, so it works without a network.

    A comment is sent in a stream after a silence of `keep_alive_seconds`; after `stall_seconds` without a
    step `/health` reports a hang. `reports` has what `/v1/scheduler` reports of the whole server, by name.
    Responses in the background need `running.run`."""
    scheduler = models.fleet.first.scheduler
    app: FastAPI = FastAPIOffline(
        title="Penstock",
        description="Continuous batching for language models on Apple MLX.",
        version=release_of(PACKAGE) or "unknown",
        # The operations before the many schemas of bodies.
        swagger_ui_parameters={"defaultModelsExpandDepth": 0},
    )
    app.state.identity = identity
    app.state.offload = scheduler.offload
    app.state.has_keys = bool(keys.keys)
    app.state.model_places = ModelPlaces()
    app.state.bodies_with_ignored_fields = scheduler.metrics.server.bodies_with_ignored_fields
    # Not by its truth: an empty store is false.
    store = ResponseStore.by_default() if responses is None else responses
    for routes in (
        openai_routes(models, keep_alive_seconds),
        completions_routes(models, keep_alive_seconds),
        responses_routes(models, keep_alive_seconds, store, running or RunningResponses()),
        decision_routes(models),
        embedding_routes(models),
        score_routes(models),
        tokenization_routes(models),
        probe_routes(models, stall_seconds),
        operations_routes(models, reports),
        cache_routes(models),
        loading_routes(models),
    ):
        app.include_router(routes, responses=OPENAI_ERRORS)
    app.include_router(anthropic_routes(models, keep_alive_seconds), responses=ANTHROPIC_ERRORS)
    app.include_router(metrics_routes(models, server))
    app.include_router(live_routes(models))
    _add_error_handlers(app)
    app.add_middleware(Authentication, keys=keys, answer=error_response)
    origins = (*APPLICATION_ORIGINS, *cors_origins)
    # Outside of authentication: a browser's preflight request has no key.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=[EVERY] if EVERY in origins else [],
        allow_origin_regex=origin_pattern(origins),
        allow_methods=["*"],
        allow_headers=["*"],
        # The server is in the user's own network, and the origin is checked already.
        allow_private_network=True,
        expose_headers=["retry-after", "x-request-id", "request-id", IGNORED_FIELDS_HEADER],
    )
    app.add_middleware(
        OriginCheck,
        hosts=hosts,
        allowed_origins=origins,
        is_open=is_open,
        answer=error_response,
    )
    app.add_middleware(HttpMetrics, requests=scheduler.metrics.server.http_requests)
    app.add_middleware(RequestIds)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(SchedulerError)
    async def scheduler_error(request: Request, error: SchedulerError) -> JSONResponse:
        return _answer(request, errors.from_scheduler(error))

    @app.exception_handler(RequestValidationError)
    async def invalid_body(request: Request, error: RequestValidationError) -> JSONResponse:
        return _answer(request, errors.from_validation(error))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        answer = _answer(
            request, errors.from_status(error.status_code, str(error.detail), headers.get("allow"))
        )
        answer.headers.update(headers)
        return answer

    @app.exception_handler(ApiFailure)
    async def api_failure(request: Request, failure: ApiFailure) -> JSONResponse:
        return _answer(request, failure.error)

    @app.exception_handler(Exception)
    async def failure(request: Request, _: Exception) -> JSONResponse:
        """Report a server error. Starlette sends this answer outside of all middleware, and raises the
        exception again for the server's log."""
        answer = _answer(request, errors.INTERNAL)
        answer.raw_headers.extend(echoed(request.scope[SCOPE_KEY]))
        return answer


def error_response(scope: Scope, error: ApiError) -> JSONResponse:
    """Return the error as the clients of its path know it."""
    error = replace(error, request_id=scope[SCOPE_KEY])
    if scope["path"].startswith("/v1/messages"):
        body, status = error.anthropic_body(), error.anthropic_status
    else:
        body, status = error.openai_body(), error.status
    return JSONResponse(body, status_code=status, headers=error.headers())


def _answer(request: Request, error: ApiError) -> JSONResponse:
    return error_response(request.scope, error)
