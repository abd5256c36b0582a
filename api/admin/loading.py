"""Endpoints for operators: load and unload a model, as requests and idleness do by themselves, and a LoRA
adapter, by vLLM's names and bodies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import trio
from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse
from pydantic import Field

from api.access.auth import operator
from api.bodies.body import Body
from api.bodies.unsupported import Unsupported
from api.dialects.json_route import JsonRoute, Validated
from api.served_models import ServedModels
from scheduler.errors import InvalidRequest
from scheduler.service import Scheduler

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


_Name = Annotated[str, Field(min_length=1, max_length=256)]
_MAX_PATH_CHARACTERS = 4096


_UNSUPPORTED = {"load_inplace": Unsupported("unload the adapter first; its requests go on")}


class LoadAdapterRequest(Body):
    """`lora_path`: a folder as mlx-lm writes it, on the server's machine."""

    unsupported = _UNSUPPORTED

    lora_name: _Name
    lora_path: str = Field(min_length=1, max_length=_MAX_PATH_CHARACTERS)
    base_model_name: _Name | None = None


class UnloadAdapterRequest(Body):
    lora_name: _Name
    base_model_name: _Name | None = None


def adapter_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["operations"], route_class=JsonRoute, dependencies=[Depends(operator)])

    @router.post("/v1/load_lora_adapter")
    async def load(body: Validated[LoadAdapterRequest]) -> dict[str, Any]:
        """Load an adapter into every engine, between two steps, and return its model. 400 names what does not
        fit: nothing has changed then."""
        base, scheduler = _base(models, body.base_model_name)
        await scheduler.load_adapter(body.lora_name, Path(body.lora_path))
        return models.listing(f"{base}:{body.lora_name}")

    @router.post("/v1/unload_lora_adapter")
    async def unload(body: Validated[UnloadAdapterRequest]) -> dict[str, Any]:
        """Take an adapter from new requests. Those that have it keep it to their end; then its memory is
        freed."""
        base, scheduler = _base(models, body.base_model_name)
        scheduler.pool.adapters.unload(body.lora_name)
        return {"id": f"{base}:{body.lora_name}", "object": "model", "deleted": True}

    return router


def _base(models: ServedModels, wanted: str | None) -> tuple[str, Scheduler]:
    """Return the model whose adapter it is. Raise ModelNotFound."""
    served = models.check(wanted)
    return served.parent or served.name, served.scheduler
