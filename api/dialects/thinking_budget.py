"""Name a thinking budget that the model cannot keep, as unknown fields are named.

It is not refused: Claude Code sends one to every model.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

from api.bodies.unknown_fields import ignore
from scheduler.request import GenerationRequest
from scheduler.service import Scheduler


def name_unkept_budget(
    scheduler: Scheduler, requests: list[GenerationRequest], scope: MutableMapping[str, Any], field: str
) -> None:
    """If a request's own budget has no effect, `field` joins the ignored fields of `scope`'s HTTP request,
    and the log line names it."""
    for number, request in enumerate(requests):
        if not scheduler.preparation.thinking.keeps(request):
            origin = replace(request.origin, ignored_fields=ignore(scope, field))
            requests[number] = replace(request, origin=origin)
