"""Endpoints for operators: load and unload a model, as requests and idleness do by themselves."""

from __future__ import annotations

from typing import Annotated

import trio
from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from api.access.auth import operator
from api.served_models import ServedModels


def loading_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["operations"], dependencies=[Depends(operator)])

    # `:path`, because hub ids contain a slash.
    @router.post("/v1/models/{name:path}/load", status_code=202)
    async def load(
        name: str, keep_seconds: Annotated[float | None, Query(allow_inf_nan=False)] = None
    ) -> JSONResponse:
        """Load a model now, if there is memory for it, or as soon as there is. `keep_seconds`: unload it
        after this time without a request, from now on; negative: never for that."""
        models.fleet.load(models.model(name).name, trio.current_time(), keep_seconds)
        return JSONResponse(models.listing(name), status_code=202)

    @router.post("/v1/models/{name:path}/unload", status_code=202)
    async def unload(name: str) -> JSONResponse:
        """Unload a model when the requests that run are over; a load that is under way ends at once. The next
        request for it, or one that waits for it, loads it again."""
        models.fleet.unload(models.model(name).name)
        return JSONResponse(models.listing(name), status_code=202)

    return router
