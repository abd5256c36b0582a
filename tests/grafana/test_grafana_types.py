"""Dashboards as Grafana reads them: its own published types know every field, and lose none of it.

Not a Grafana: none is to be had from the registries that CI reaches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.grafana.expressions import DASHBOARDS

NOT_IN_THE_TYPES = {"definition", "titleFormat", "step"}
"""What Grafana itself writes into the dashboards it exports, and its types do not have: a query variable's
text in the list of variables, and an annotation's title and step."""


@pytest.fixture(scope="module", autouse=True)
def _panel_types() -> None:
    register_default_plugins()


def read_and_written(board: Any) -> Any:
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


def lost(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """The places of what is not in `theirs`, or is there as something else."""
    match ours, theirs:
        case dict(), dict():
            for key, value in ours.items():
                if key in theirs:
                    yield from lost(value, theirs[key], f"{path}/{key}")
                elif key not in NOT_IN_THE_TYPES:
                    yield f"{path}/{key}"
        case list(), list() if len(ours) == len(theirs):
            for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                yield from lost(one, other, f"{path}/{place}")
        case _:
            if ours != theirs:
                yield path


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: str(path.stem))
def test_grafanas_types_know_every_field(path: Path) -> None:
    """Read and written again it is the same, so that nothing of it is a word that Grafana overlooks."""
    board = json.loads(path.read_text("utf-8"))
    assert list(lost(board, read_and_written(board))) == []


def test_a_misspelt_field_is_found() -> None:
    """Deep in a panel as well; or the test above would find nothing."""
    board = json.loads(DASHBOARDS[0].read_text("utf-8"))
    board["panels"][0]["fieldConfig"]["defaults"]["untis"] = "s"
    assert list(lost(board, read_and_written(board))) == ["/panels/0/fieldConfig/defaults/untis"]
