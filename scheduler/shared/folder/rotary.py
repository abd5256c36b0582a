"""Rotary positions in either spelling of config.json, and in the one that a module of mlx-lm reads.

transformers 4 writes `rope_theta`, `rope_scaling` and `partial_rotary_factor` beside the other fields,
transformers 5 one object `rope_parameters`, or one a type of layer. mlx-lm's modules read one, or the other,
or part of it, and take a default for what they do not find. So they are given both. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.errors import StartupError
from scheduler.shared.folder.field_names import head_size, in_module_names
from scheduler.shared.folder.mlx_lm_module import Module

TEXT = "text_config"
"""Where a model with eyes or ears has the fields of its language model."""
_FULL = "full_attention"
_BASES = ("rope_theta", "rotary_emb_base")
_LOCAL_BASES = ("rope_local_base_freq", "swa_rope_theta", "rope_local_theta")
"""The base of layers with a window, where it is another one."""
SHARES = ("partial_rotary_factor", "rotary_pct")
_UNWRITTEN_SHARES: Final = {"glm": 0.5}
"""What transformers turns of a head where nothing says so, in modules that turn all of it."""
_POSITIONS = (*_BASES, *_LOCAL_BASES, *SHARES, "rope_scaling", "rope_parameters")
_OF_PARAMETERS = ("rope_theta", "partial_rotary_factor")
"""What transformers 5 has in `rope_parameters` and transformers 4 beside `rope_scaling`."""
_BY_LAYER: Final = frozenset({"gemma4", "gemma4_text", "laguna", "mellum", "spark2_5"})
"""Modules that read one object of `rope_parameters` a type of layer."""
_SCALES_FULL_LAYERS: Final = frozenset({"gear", "gemma3", "gemma3_text", "gemma3n", "olmo3"})
"""Modules that scale the positions of layers without a window only."""
_SCALED_LATER: Final = frozenset({"internlm2", "internlm3", "nemotron", "qwen2_moe"})
"""Modules that refuse scalings that others take, as Phi-3 does all but longrope. They are built without, and
get it afterwards, as all do for the dynamic type."""
_ORIGINAL = "original_max_position_embeddings"
_NEEDS_ORIGINAL = ("yarn", "llama3", "longrope", "deepseek_yarn", "telechat3-yarn")


@dataclass(frozen=True, slots=True)
class Rotary:
    """How a model's positions turn its queries and keys."""

    base: float | None = None
    """It is None where it is not configured, or is one a layer, which the module reads itself."""
    kind: str = "default"
    scaling: Mapping[str, Any] | None = None
    """All fields of the scaling; None if `kind` is the default one."""
    share: float | None = None
    """The part of a head that is turned; None if it is not configured."""
    local_base: float | None = None
    """The base of layers with a window, if it differs."""
    by_layer: bool = False
    """Whether the module reads what each type of layer has; the other fields are those of full attention."""

    @property
    def factor(self) -> float:
        return float((self.scaling or {}).get("factor") or 1.0)

    @property
    def grows(self) -> bool:
        """Whether the base depends on the length of a sequence. Hunyuan's depends on a field, `alpha`."""
        return self.kind == "dynamic" and "alpha" not in (self.scaling or {})


def rotary_of(config: Mapping[str, Any], module: Module) -> Rotary:
    """Return the rotary positions of a model's text part. Raise StartupError for layers of several kinds that
    the module computes alike."""
    part = text_of(config)
    given = part.get("rope_parameters") or {}
    layers = {name: dict(one or {}) for name, one in given.items()} if _is_nested(given) else {}
    by_layer = bool(layers) and module.name in _BY_LAYER
    full = layers.get(_FULL) or next(iter(layers.values()), None) or ({} if layers else dict(given))
    scaling = dict(part.get("rope_scaling") or full)
    local = {} if by_layer else _local(part, full, layers, module)
    share = _number(full, "partial_rotary_factor")
    share = _number(part, *SHARES) if share is None else share
    base, local_base = _number(full, "rope_theta"), _number(local, "rope_theta")
    return Rotary(
        base=_number(part, *_BASES) if base is None else base,
        kind=(kind := _kind(scaling)),
        scaling=_scaling(scaling, kind, part),
        share=_UNWRITTEN_SHARES.get(module.name) if share is None else share,
        local_base=_number(part, *_LOCAL_BASES) if local_base is None else local_base,
        by_layer=by_layer,
    )


def in_both_spellings(config: Mapping[str, Any], module: Module) -> dict[str, Any]:
    part = text_of(config)
    changes = in_module_names(part, module) | _rotary_fields(part, rotary_of(config, module), module)
    if isinstance(text := config.get(TEXT), Mapping):
        return {**config, TEXT: {**text, **changes}}
    return {**config, **changes}


def _rotary_fields(part: Mapping[str, Any], rotary: Rotary, module: Module) -> dict[str, Any]:
    if rotary.by_layer:
        return {}
    later = module.name == "phi3" and rotary.kind != "longrope"
    later |= rotary.grows or module.name in _SCALED_LATER
    taken = {} if later else dict(rotary.scaling or {})
    fields: dict[str, Any] = dict.fromkeys(_BASES, rotary.base) | dict.fromkeys(
        _LOCAL_BASES, rotary.local_base
    )
    fields |= dict.fromkeys(SHARES, rotary.share) | {_ORIGINAL: taken.get(_ORIGINAL) or None}
    size = head_size(part)
    if rotary.share is not None and size is not None and part.get("rotary_dim") is None:
        fields["rotary_dim"] = int(size * rotary.share)
    own = part.get("rope_parameters") or {}
    if module.name not in _BY_LAYER and rotary.base is not None:
        flat = {"rope_type": rotary.kind, "type": rotary.kind, "rope_theta": rotary.base}
        if rotary.share is not None:
            flat["partial_rotary_factor"] = rotary.share
        fields["rope_parameters"] = {**({} if _is_nested(own) else own), **taken, **flat}
    fields = {name: value for name, value in fields.items() if value is not None}
    if part.get("rope_scaling") or own:
        fields["rope_scaling"] = taken or None
    # What the module does not take stays away from fields that a configuration of its own may have.
    return {name: value for name, value in fields.items() if name in module.declared}


def text_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the language model, and those beside it that it lacks. Raise StartupError."""
    text = config.get(TEXT) or {}
    if not isinstance(text, Mapping):
        raise StartupError(f"--model: config.json has a value of a wrong type: {TEXT} is no object")
    beside = _POSITIONS if any(text.get(name) is not None for name in _POSITIONS) else ()
    return {name: value for name, value in config.items() if name not in beside} | dict(text)


def _is_nested(given: Mapping[str, Any]) -> bool:
    return bool(given) and all(one is None or isinstance(one, Mapping) for one in given.values())


def _kind(scaling: Mapping[str, Any]) -> str:
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind == "mrope":
        return "default"  # Three axes of a picture; a text's are equal.
    return "longrope" if kind == "su" or (kind == "default" and "long_factor" in scaling) else kind


def _scaling(scaling: Mapping[str, Any], kind: str, part: Mapping[str, Any]) -> dict[str, Any] | None:
    if kind == "default":
        return None
    found = {name: value for name, value in scaling.items() if name not in _OF_PARAMETERS}
    found |= {"rope_type": kind, "type": kind}
    if kind in _NEEDS_ORIGINAL:
        # transformers writes its own guess into the scaling where the field stands beside it, and reads that.
        own = found.get(_ORIGINAL)
        original = part.get(_ORIGINAL) or own or part.get("max_position_embeddings")
        if original:
            found[_ORIGINAL] = original
    return found


def _local(
    part: Mapping[str, Any], full: Mapping[str, Any], layers: Mapping[str, Mapping[str, Any]], module: Module
) -> Mapping[str, Any]:
    """Return what layers of another type than full attention have."""
    used = part.get("layer_types")
    others = [one for name, one in layers.items() if name != _FULL and (used is None or name in used)]
    local = next((one for one in others if _essence(one) != _essence(full)), None)
    if local is None:
        return others[0] if others else {}
    same = {name for name in ("rope_theta", "partial_rotary_factor") if local.get(name) == full.get(name)}
    scales = _kind(local) == _kind(full) or (_kind(local) == "default" and module.name in _SCALES_FULL_LAYERS)
    knows_base = "rope_theta" in same or any(name in module.declared for name in _LOCAL_BASES)
    alike = all(_essence(one) in (_essence(full), _essence(local)) for one in others)
    if alike and scales and knows_base and "partial_rotary_factor" in same:
        return local
    raise StartupError(
        f"--model: config.json gives rope_parameters for {', '.join(layers)} apart, and mlx-lm's"
        f" {module.name} computes these layers alike"
    )


def _essence(one: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, "type": "", "rope_type": _kind(one)}


def _number(fields: Mapping[str, Any], *names: str) -> float | None:
    value = next((fields[name] for name in names if fields.get(name) is not None), None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
