"""Endpoints for operators: load a LoRA adapter, and unload it. Names and bodies are vLLM's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field, StrictBool

from api.access.auth import operator
from api.bodies.body import Body
from api.bodies.fields import Refused
from api.dialects.json_route import JsonRoute, Validated
from api.served_models import ServedModels
from scheduler.service import Scheduler

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_MAX_PATH_CHARACTERS = 4096


class LoadAdapterRequest(Body):
    """`lora_path`: a folder as mlx-lm writes it, on the server's machine."""

    lora_name: _Name
    lora_path: str = Field(min_length=1, max_length=_MAX_PATH_CHARACTERS)
    base_model_name: _Name | None = None
    load_inplace: Annotated[
        StrictBool | None, Refused("unload the adapter first; its requests go on", neutral=(False,))
    ] = None


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
    return served.of_name.parent or served.name, served.scheduler
