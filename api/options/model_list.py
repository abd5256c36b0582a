"""The models that the options name: each with settings as if it were the server's only one.

`--model` several times, or `--models FILE`, a TOML file with a table `[[model]]` for each:

    [[model]]
    name = "coder"                       # --served-model-name
    model = "mlx-community/Qwen3-8B-4bit" # --model
    pinned = true                        # only an operator unloads it
    max_slots = 16                       # any other option that is not the server's

    [[model]]
    name = "titles"
    model = "/models/small"
    idle_seconds = 300
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from api.options.option_values import between_commas
from api.options.options import first_fault, flag, options
from api.options.settings import ServeSettings
from scheduler.errors import OptionError

EMBEDDED = "embedded"
"""Name of the embedded model, also where a folder has that name: `./embedded` is the folder."""
IDLE_SECONDS = 900.0
"""Default idle time of models after the first one."""
_OF_THE_SERVER = frozenset(("HTTP", "Keys", "Metrics", "Logs"))
"""Groups of options that concern all models."""
_NOT_OF_ONE = frozenset(("models", "memory_limit", "cache_sharing", "tenant_header"))
MOST_MODELS = 64
_Needed: TypeAlias = tuple[str, Callable[[ServeSettings], bool]]
_ENGINES_JOIN: _Needed = ("--engines join", lambda settings: settings.engines_join)
_NEEDED: Mapping[str, _Needed] = {
    "scripted": ("--engine scripted", lambda settings: settings.engine == "scripted"),
    "kv_disk_bytes": ("--kv-disk", lambda settings: settings.kv_disk is not None),
    "engine_address": _ENGINES_JOIN,
}
"""What an option is given with, because it has no effect without."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """One model's options."""

    settings: ServeSettings
    pinned: bool
    idle_seconds: float | None
    """Unload the model after this time without a request; None never does."""


def models_of(settings: ServeSettings) -> tuple[ModelOptions, ...]:
    """Return all models, the default one first. Raise OptionError."""
    if settings.models is not None:
        if settings.model is not None or settings.served_model_name is not None:
            raise OptionError("--models names all models: --model and --served-model-name belong in its file")
        found = _from_file(settings, settings.models)
    else:
        found = _from_flags(settings)
    if len(found) > MOST_MODELS:
        raise OptionError(f"{len(found)} models are more than {MOST_MODELS}")
    every = [one.settings for one in found]
    for name, (needed, is_given) in _NEEDED.items():
        if any(name in one.model_fields_set for one in every) and not any(map(is_given, every)):
            raise OptionError(f"{flag(name)} has no effect without {needed}")
    return found


def _from_flags(settings: ServeSettings) -> tuple[ModelOptions, ...]:
    names = _named(settings.model)
    if len(names) > 1 and settings.served_model_name is not None:
        raise OptionError("--served-model-name is for one model: name several in a file (--models)")
    return tuple(
        _of_table(settings, {} if name is None else {"model": name}, number)
        for number, name in enumerate(names)
    )


def _named(text: str | None) -> list[str | None]:
    # A folder's name may have a comma.
    if text is None or Path(text).expanduser().is_dir():
        return [text]
    return [*between_commas(text)]


def _from_file(settings: ServeSettings, path: Path) -> tuple[ModelOptions, ...]:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"--models: {path} cannot be read: {error}") from error
    tables = content.pop("model", None)
    if content or not isinstance(tables, list) or not tables:
        extra = f", not {next(iter(content))!r}" if content else ""
        raise OptionError(f"--models: {path} must have a table [[model]] for each model{extra}")
    try:
        return tuple(_of_table(settings, table, number) for number, table in enumerate(tables))
    except OptionError as error:
        raise OptionError(f"--models: {path}: {error}") from error


def _of_table(settings: ServeSettings, table: Mapping[str, Any], number: int) -> ModelOptions:
    """Return the options of one model; `number` is its place in the list, from 0."""
    given = {key.replace("-", "_"): value for key, value in table.items()}
    if "name" in given:
        given["served_model_name"] = given.pop("name")
    pinned = given.pop("pinned", False)
    if not isinstance(pinned, bool):
        raise OptionError(f"model {number + 1}: pinned is true or false, not {pinned!r}")
    known = {
        option.field
        for option in options()
        if option.group not in _OF_THE_SERVER and option.field not in _NOT_OF_ONE
    }
    for key in given:
        if key not in known:
            raise OptionError(f"model {number + 1}: a model has no option {key!r}")
    try:
        own = ServeSettings.model_validate(
            {**settings.model_dump(exclude={"models", "model"}, exclude_unset=True), **given}
        )
    except ValidationError as error:
        field, reason = first_fault(error)
        raise OptionError(f"model {number + 1}: {field}: {reason}") from error
    idle_seconds = own.idle_seconds
    if idle_seconds is None:
        idle_seconds = IDLE_SECONDS if number else 0.0
    return ModelOptions(own, pinned, idle_seconds or None)
