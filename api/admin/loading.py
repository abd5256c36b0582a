"""Endpoints for operators: load and unload a model, as requests and idleness do by themselves."""

from __future__ import annotations

import re
from typing import Annotated

import trio
from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from api.access.auth import operator
from api.served_models import ServedModels
from scheduler.errors import InvalidRequest

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smh]?)")


def keep_seconds(text: str) -> float:
    """Parse a duration as Ollama and Go write it ("10m", "1h30m"), or a number of seconds, into seconds; less
    than 0 means for ever. Raise InvalidRequest."""
    amount = text.strip().lstrip("-")
    parts = _PART.findall(amount)
    if not parts or len(text) > 32 or "".join(number + unit for number, unit in parts) != amount:
        raise InvalidRequest(
            f"keep_alive is a number of seconds or a duration such as 10m, not {text[:32]!r}",
            param="keep_alive",
        )
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return -seconds if text.strip().startswith("-") else seconds


def loading_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["operations"], dependencies=[Depends(operator)])

    # `:path`, because hub ids contain a slash.
    @router.post("/v1/models/{name:path}/load", status_code=202)
    async def load(name: str, keep_alive: Annotated[str | None, Query()] = None) -> JSONResponse:
        """Load a model now, if there is memory for it, or as soon as there is. `keep_alive`: unload it after
        this time without a request, from now on; negative: never for that."""
        seconds = None if keep_alive is None else keep_seconds(keep_alive)
        models.fleet.load(models.model(name).name, trio.current_time(), seconds)
        return JSONResponse(models.listing(name), status_code=202)

    @router.post("/v1/models/{name:path}/unload", status_code=202)
    async def unload(name: str) -> JSONResponse:
        """Unload a model when the requests that run are over; a load that is under way ends at once. The next
        request for it, or one that waits for it, loads it again."""
        models.fleet.unload(models.model(name).name)
        return JSONResponse(models.listing(name), status_code=202)

    return router
