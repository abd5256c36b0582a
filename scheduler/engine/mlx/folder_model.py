"""mlx-lm's model of a folder, as the reading of that folder says it is."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes, load_model

from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.mlx.upstream.rotary import turn_as_configured
from scheduler.engine.mlx.upstream.saved_tensors import Weights, as_the_module_reads
from scheduler.shared.folder.reading import FolderReading, read_folder
from scheduler.shared.folder.rotary import TEXT

_LEFT_OUT = (
    re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$"),  # computed from config.json
    re.compile(r"\.(masked_bias|k_scale|v_scale|q_scale|input_scale)$"),  # masks, and another cache's scales
    re.compile(r"(^|\.)mtp(\.|_)|\.(eh_proj|enorm|hnorm|shared_head)\."),  # drafts of the model's own
    re.compile(
        r"(^|\.)(vision_tower|vision_model|visual|vision_encoder|multi_modal_projector|mm_projector|audio_tower"
        r"|audio_model|embed_vision|embed_audio|image_newline|vision_language_adapter|patch_merger|vision_embed)"
        r"(\.|$)"
    ),
)
"""Tensors that say nothing about the text's tokens. Others that the model does not have are refused."""
_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate")
_RIGHT: Mapping[tuple[str, str], tuple[Any, ...]] = {
    ("falcon_h1", "key_multiplier"): (1,),  # mlx-lm leaves both out of keys and values (#1622, closed).
    ("falcon_h1", "attention_in_multiplier"): (1,),
    ("gemma", "hidden_act"): (),  # Its first files say "gelu", and transformers approximates it.
    ("gemma", "hidden_activation"): (),
    ("gpt_bigcode", "activation_function"): ("gelu",),
    ("gpt_neox", "hidden_act"): _TANH,
    ("jamba", "num_experts"): (1,),  # mlx-lm has shares among the chosen experts, not among all.
    ("mamba2", "n_groups"): (1,),  # It has one norm over all groups.
    ("starcoder2", "hidden_act"): ("gelu",),
}
"""By mlx-lm's module and a field the only values that it computes as transformers does, in families that
nobody farms."""
_HEAD, _EMBEDDINGS, _TIED = "lm_head.weight", "embed_tokens.weight", "tie_word_embeddings"
_ALL_EMBEDDINGS = (_EMBEDDINGS, "wte.weight", "embed_in.weight", "embeddings.weight")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]+)\.")


def read_model(
    folder: Path,
    max_model_len: int | None = None,
    given: Mapping[str, Any] | None = None,
    sanitize: Callable[[Any, Weights], Weights] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Return mlx-lm's model, its weights not evaluated, and its configuration. What of the weights is not
    loaded is printed to stderr.

    `given`: fields of the configuration to set besides. `sanitize`: as the model's own, called with it in its
    place. Raise StartupError for a folder that cannot be served, mlx-lm's errors, and LoadRefused.
    """
    reading = read_folder(folder)
    _check_computed(reading)
    left_out: set[str] = set()

    def classes(config: dict[str, Any]) -> tuple[Any, Any]:
        model_class, arguments = _get_classes(config)

        def make(*values: Any) -> Any:
            model = model_class(*values)
            own = getattr(model, "sanitize", None)

            def sanitized(weights: Weights) -> Weights:
                chosen = as_the_module_reads(model, _of_files(folder, reading, weights))
                if sanitize is not None:
                    chosen = sanitize(model, chosen)
                elif own is not None:
                    chosen = own(chosen)
                extra = _unused(model, chosen, reading)
                left_out.update(extra)
                return {name: array for name, array in chosen.items() if name not in extra}

            model.sanitize = sanitized
            return model

        return make, arguments

    changes = {**reading.changes_for(max_model_len), **(given or {})}
    if given is None and _has_own_head(folder, reading):
        changes |= _untied(reading, changes)
        print(
            "config.json ties the head to the embeddings, and the head that is there differs: it is used",
            file=sys.stderr,
        )
    model, config = load_model(folder, lazy=True, model_config=changes, get_model_classes=classes)
    del model.sanitize
    turn_as_configured(model, reading, max_model_len)
    if left_out:
        shown = sorted(left_out)
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        print(f"tensors that are not needed: {', '.join(shown[:3])}{more}", file=sys.stderr)
    return model, config


def _check_computed(reading: FolderReading) -> None:
    """Raise LoadRefused for a field whose value mlx-lm's module computes otherwise than transformers."""
    module = "" if reading.module is None else reading.module.name
    for (name, field), values in _RIGHT.items():
        value = reading.text.get(field)
        if name == module and value is not None and value not in values:
            raise LoadRefused(
                f"config.json says {field} {value!r}, which mlx-lm's {name} does not compute as transformers:"
                " serve another model, or take the field out"
            )


def _has_own_head(folder: Path, reading: FolderReading) -> bool:
    """Return whether a head that config.json ties to the embeddings has other numbers than they. A merged
    adapter leaves such folders, and transformers does not tie them either."""
    heads = [name for name in reading.weights.tensors if name.endswith(_HEAD)]
    embeddings = [name for name in reading.weights.tensors if name.endswith(_EMBEDDINGS)]
    if len(heads) != 1 or len(embeddings) != 1 or reading.text.get(_TIED) is not True:
        return False
    found: Weights = {}
    for file in reading.weights.names:
        arrays: Any = mx.load(str(folder / file))
        found.update({name: array for name, array in arrays.items() if name in (heads[0], embeddings[0])})
    head, embedding = found[heads[0]], found[embeddings[0]]
    return head.shape == embedding.shape and not bool(mx.array_equal(head, embedding))


def _untied(reading: FolderReading, changes: Mapping[str, Any]) -> dict[str, Any]:
    text = changes.get(TEXT) or reading.config.get(TEXT)
    return {TEXT: {**text, _TIED: False}} if isinstance(text, Mapping) else {_TIED: False}


def _of_files(folder: Path, reading: FolderReading, weights: Weights) -> Weights:
    """Return the tensors of the files that are loaded. mlx-lm has read all that there are, in any order."""
    if reading.weights.is_whole_folder:
        return weights
    chosen: Weights = {}
    for name in reading.weights.names:
        found: Any = mx.load(str(folder / name))
        chosen.update(found)
    return chosen


def _unused(model: Any, weights: Weights, reading: FolderReading) -> set[str]:
    flat: Any = tree_flatten(model.parameters())
    wanted = {name for name, _ in flat}
    layers = reading.text.get("num_hidden_layers")
    unused: set[str] = set()
    for name in weights:
        if name in wanted or name.rpartition(".")[0] + ".weight" in wanted:
            continue
        behind = (
            (match := _LAYER.search(name)) is not None and isinstance(layers, int) and int(match[1]) >= layers
        )
        if behind or any(pattern.search(name) for pattern in _LEFT_OUT) or _is_copied_head(name, weights):
            unused.add(name)
    return unused


def _is_copied_head(name: str, weights: Weights) -> bool:
    """Return whether this is a head that the module has tied, as a copy of the embeddings."""
    if not name.endswith(_HEAD):
        return False
    head = weights[name]
    embeddings = [one for other, one in weights.items() if other.endswith(_ALL_EMBEDDINGS)]
    return any(one.shape == head.shape and bool(mx.array_equal(one, head)) for one in embeddings)
