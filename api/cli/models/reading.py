"""Models with the plan of each on this machine: what `models` and `show` start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from api.cli import machine
from api.cli.errors import OperatorError
from api.cli.machine import Answers, Machine
from api.cli.models import disk_models
from api.cli.models.disk_models import DiskModel
from api.cli.models.memory_plan import MemoryPlan, memory_plan
from api.smollm2 import model as smollm2

folders_option = click.option(
    "--models-folder",
    "folders",
    multiple=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder with models, or a model, beside the hub's cache; may be repeated.",
)


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model with its plan, which is None if it cannot be loaded or MLX does not work here."""

    model: DiskModel
    plan: MemoryPlan | None

    @property
    def reason(self) -> str:
        """Return why it cannot be served here; empty if it can, as far as is known."""
        return self.model.reason or ("" if self.plan is None else self.plan.reason)


@dataclass(frozen=True, slots=True)
class ModelsReading:
    """The models and the machine. `machine` is None if MLX does not work here; `reason` then says why."""

    models: tuple[PlannedModel, ...]
    machine: Machine | None
    reason: str = ""


def read(models: Sequence[DiskModel]) -> ModelsReading:
    """Return the models with their plans, for which a child process asks MLX."""
    try:
        answers = machine.ask([model.folder for model in models if model.is_model])
    except OperatorError as error:
        return ModelsReading(tuple(PlannedModel(model, None) for model in models), None, str(error))
    return ModelsReading(tuple(_planned(model, answers) for model in models), answers.machine)


def _planned(model: DiskModel, answers: Answers) -> PlannedModel:
    if not model.is_model:
        return PlannedModel(model, None)
    # Embedders are loaded in a way of their own (`mlx/pooling/loading.py`).
    if model.task == "chat" and (reason := answers.reasons.get(model.folder)) is not None:
        return PlannedModel(replace(model, reason=f"mlx-lm cannot load it: {reason}"), None)
    return PlannedModel(model, memory_plan(model, answers.machine, answers.models.get(model.folder)))


def find_one(text: str, folders: Sequence[Path] = ()) -> DiskModel:
    """Return the model of a name or a folder. Raise OperatorError if there is none."""
    if (model := disk_models.named(text, folders)) is None:
        known = text == smollm2.NAME or text.count("/") == 1
        more = f"`penstock pull {text}` gets it" if known else "`penstock pull` gets more"
        raise OperatorError(f"no model {text!r} is on this machine: `penstock models` lists them, {more}")
    return model
