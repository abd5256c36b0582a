"""Models with the plan of each on this machine: what `models` and `show` start from."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from api.cli import machine
from api.cli.errors import OperatorError
from api.cli.machine import Answers, Machine
from api.cli.models import disk_models
from api.cli.models.disk_models import DiskModel
from api.cli.models.memory_plan import MemoryPlan, memory_plan
from api.options.model_list import own_name_alike
from api.smollm2 import model as smollm2

folders_option = click.option(
    "--models-folder",
    "--folder",
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

    def as_json(self, tokens: int | None = None) -> dict[str, Any]:
        """Return all that is known of the model; with `tokens`, also how many agents run at a time."""
        known = asdict(self.model) | {"folder": str(self.model.folder), "servable": self.model.is_model}
        if self.plan is None:
            return known | {"fits": None}
        plan = self.plan
        memory = {
            "fits": plan.fits,
            "memory_reason": plan.reason,
            "memory_weights_bytes": plan.weights_bytes,
            "memory_limit_bytes": plan.limit_bytes,
            "memory_least_bytes": plan.least_bytes,
            "kv_cache_bytes": plan.kv_bytes,
            "kv_bytes_per_token": plan.kv_bytes_per_token,
            "longest_tokens": plan.longest(self.model.context_tokens),
        }
        if tokens is not None:
            memory |= {
                "tokens": tokens,
                "agents": plan.agents(tokens),
                "q8_agents": plan.q8_agents(tokens),
            }
        return known | memory


@dataclass(frozen=True, slots=True)
class ModelsReading:
    """The models and the machine. `machine` is None if MLX does not work here; `reason` then says why."""

    models: tuple[PlannedModel, ...]
    machine: Machine | None
    reason: str = ""


def read(models: Sequence[DiskModel]) -> ModelsReading:
    """Return the models with dialects and plans. A child process asks MLX while tokenizers are loaded."""
    folders = [model.folder for model in models if model.is_model]
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(machine.ask, folders)
        models = disk_models.with_dialects(models)
        try:
            answers = asked.result()
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


def read_one(text: str, folders: Sequence[Path]) -> tuple[PlannedModel, ModelsReading]:
    """Return the model of a name or a folder. Raise OperatorError if there is none."""
    model = find_one(text, folders)
    reading = read([model])
    return reading.models[0], reading


def find_one(text: str, folders: Sequence[Path] = ()) -> DiskModel:
    """Return the model of a name or a folder, without its dialects. Raise OperatorError if there is none."""
    if (model := disk_models.named(text, folders)) is None:
        known = text == smollm2.NAME or text.count("/") == 1
        more = f"`penstock pull {text}` gets it" if known else "`penstock pull` gets more"
        raise OperatorError(
            f"no model {text!r} is on this machine: `penstock models` lists them, {more}"
            f"{own_name_alike(text)}"
        )
    return model
