"""A model's folder, read once: its small files become one description, which the server, the engine and every
command have.

`describe` is pure. What has an effect on answers is honoured or refused by name; what is not understood is
named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scheduler.errors import StartupError
from scheduler.shared.folder.config_fields import check_packing, unread_fields
from scheduler.shared.folder.context import Context, context_of, table_positions
from scheduler.shared.folder.mlx_lm_module import Module, module_of
from scheduler.shared.folder.rotary import TEXT, Rotary, in_both_spellings, rotary_of, text_of
from scheduler.shared.folder.weight_files import WeightFiles, read_weights

GENERATION_CONFIG = "generation_config.json"
_NO_MODULE = Module("", frozenset(), frozenset())
_TIED = "tie_word_embeddings"
_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class FolderReading:
    """What a folder says of its model."""

    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    """Unchecked: who made the model may have written anything."""
    model_type: str
    module: Module | None
    """mlx-lm's; None where the model brings its own code, or mlx-lm knows no such type."""
    rotary: Rotary
    context: Context
    weights: WeightFiles
    changes: Mapping[str, Any]
    """The fields of config.json that the module is given otherwise than they are written."""
    notes: tuple[str, ...] = ()
    """What an operator should know, as sentences."""
    unread: tuple[str, ...] = ()
    """The fields of the text part that the module does not read, whatever they are about."""

    @property
    def text(self) -> dict[str, Any]:
        """The fields of the language model."""
        return text_of(self.config)

    @property
    def positions(self) -> str:
        """How tokens get their positions, in words."""
        rotary = self.rotary
        if (table := table_positions(self.weights.tensors)) is not None or rotary.base is None:
            return "" if table is None else f"a table of {table:,}"
        factor = f" by {rotary.factor:g}" if rotary.factor != 1 else ""
        scaled = "" if rotary.scaling is None else f", scaled{factor} ({rotary.kind})"
        return f"rotary, base {rotary.base:,g}{scaled}"

    def changes_for(self, context_tokens: int | None) -> dict[str, Any]:
        """Return `changes` for a served context, or for the default one."""
        tokens = self.context.tokens if context_tokens is None else context_tokens
        most = self.context.short_tokens
        changes, scaling = dict(self.changes), self.rotary.scaling
        if most is None or tokens > most or scaling is None or "short_factor" not in scaling:
            return changes
        # mlx-lm has the long factors for all positions; up to the original context the short ones are right.
        named = (("long_factor", "short_factor"), ("long_mscale", "short_mscale"))
        short = {long: scaling[own] for long, own in named if own in scaling}
        within = changes.get(TEXT, changes)
        spelled = {"rope_scaling": {**scaling, **short}}
        if isinstance(own := within.get("rope_parameters"), Mapping):
            spelled["rope_parameters"] = {**own, **scaling, **short}
        return {**changes, TEXT: {**within, **spelled}} if TEXT in changes else {**changes, **spelled}


def read_folder(folder: Path) -> FolderReading:
    """Read the model in `folder`: its configuration, and its weights' headers. Raise StartupError."""
    config = read_json(folder / "config.json")
    if config is None:
        raise StartupError(f"--model: {folder} holds no config.json")
    weights = read_weights(folder)
    if not weights.names:
        raise StartupError(f"--model: {folder} holds no model*.safetensors")
    try:
        return describe(config, read_json(folder / GENERATION_CONFIG) or {}, weights)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise StartupError(
            f"--model: {folder / 'config.json'} has a value of a wrong type: {error}"
        ) from error


def describe(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], weights: WeightFiles
) -> FolderReading:
    """Return what these files say. Raise StartupError for what contradicts itself, and for what changes
    answers and is not computed."""
    model_type = str(config.get("model_type") or "")
    brings_code = bool(config.get("model_file"))
    module = None if brings_code or not model_type else module_of(model_type, config.get("architectures"))
    part, notes = text_of(config), list(weights.notes)
    rotary = rotary_of(config, module or _NO_MODULE)
    context = context_of(part, rotary, table_positions(weights.tensors))
    changes, unread = dict[str, Any](), tuple[str, ...]()
    if module is not None:
        check_packing(part, weights.tensors, module)
        changes = _changes(config, in_both_spellings(config, module), weights, module)
        unread = unread_fields(part, module)
        if (window := _window(part, module)) is not None and window < context.tokens:
            notes.append(
                f"mlx-lm's {module.name} has no sliding window, and the model one of {window} tokens: the"
                f" context is these, unless --max-model-len names more, up to {context.most_tokens}"
            )
            context = replace(context, tokens=window)
    if context.short_tokens is not None and context.short_tokens < context.most_tokens:
        how = ("its own base", "a larger one") if rotary.grows else ("its short factors", "its long ones")
        notes.append(
            f"{rotary.kind}: {context.tokens} tokens with {how[0]}; --max-model-len serves up to"
            f" {context.most_tokens} with {how[1]}"
        )
    return FolderReading(
        config, generation_config, model_type, module, rotary, context, weights, changes, tuple(notes), unread
    )


def _changes(
    config: Mapping[str, Any], given: dict[str, Any], weights: WeightFiles, module: Module
) -> dict[str, Any]:
    text = config.get(TEXT)
    ties = {one.get(_TIED) for one in (config, text or {})} - {None}
    has_head = any(name.endswith(_HEAD) for name in weights.tensors)
    if _TIED in module.declared and (ties or has_head):
        # transformers 5 says it beside the text part alone, or says there what is true of the class. mlx-lm
        # reads the part, and its default may be True: the head would be dropped.
        tied = {_TIED: ties.pop() if len(ties) == 1 else not has_head}
        given = given | (tied if text is None else {TEXT: {**given[TEXT], **tied}})
    return {name: value for name, value in given.items() if name not in config or config[name] != value}


def _window(part: Mapping[str, Any], module: Module) -> int | None:
    """Return the sliding window that the module does not have, or None."""
    window, kinds = part.get("sliding_window"), part.get("layer_types")
    if not isinstance(window, int) or window < 1 or part.get("use_sliding_window") is False:
        return None
    if "use_sliding_window" not in part and str(part.get("model_type", "")).startswith("qwen"):
        return None
    if isinstance(kinds, list):
        windowed = any("sliding" in str(kind) for kind in kinds)
        return window if windowed and not {"sliding_window", "layer_types"} & module.read else None
    if module.name == "llama":  # It has windows in layers that layer_types names, and in no others.
        return window
    return None if "sliding_window" in module.read else window


def named_ends(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> frozenset[int]:
    """Return the tokens that end an answer, as these files name them. Raise TypeError or ValueError."""
    named = (one.get("eos_token_id") for one in (config, text_of(config), generation_config))
    values = (value if isinstance(value, list) else [value] for value in named if value is not None)
    return frozenset(int(one) for value in values for one in value)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object that a file of a model holds, or None if there is no such file. Raise
    StartupError."""
    content = read_value(path)
    if content is not None and not isinstance(content, dict):
        raise StartupError(f"--model: {path} is not a JSON object")
    return content


def read_value(path: Path) -> Any:
    """Return what a JSON file of a model holds, or None if there is no such file. Raise StartupError."""
    try:
        return json.loads(path.read_text("utf-8"), object_hook=_untagged)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StartupError(f"--model: {path} cannot be read: {error}") from error


def _untagged(value: dict[str, Any]) -> Any:
    """Return the number that transformers has written as an object, because JSON has no infinity."""
    if value.keys() == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
        return float(value["__float__"])
    return value
