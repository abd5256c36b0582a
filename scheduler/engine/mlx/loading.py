"""Load a model from a folder: weights, their type, one token to test it, the disk tier.

Metal and CUDA take the same path through this file; we have run only the CPU build.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import dequantize_model

from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.device import Readings
from scheduler.engine.disk.block_chain import states_fingerprint
from scheduler.engine.disk.disk_folder import DiskTierUnavailable
from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.grammars.grammars import Grammars, grammar_tokenizer
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.device import device, limit_of
from scheduler.engine.mlx.environment import keep_float32
from scheduler.engine.mlx.folder_model import read_model
from scheduler.engine.mlx.fusing import Exact, fuse
from scheduler.engine.mlx.group_cost import group_cost_tokens
from scheduler.engine.mlx.kept_verdicts import KeptVerdicts, StoredVerdict, verdict_key
from scheduler.engine.mlx.kv.cache_layout import row_bytes, unpackable_size
from scheduler.engine.mlx.load_check import CHECK_CHUNK_TOKENS, CHECK_ROWS, check, has_float32_weights
from scheduler.engine.mlx.loaded_model import LoadedModel
from scheduler.engine.mlx.packed import PACKINGS
from scheduler.engine.mlx.upstream.apply import apply
from scheduler.engine.mlx.upstream.mend import mend, mended_parts
from scheduler.engine.mlx.upstream.products import shift_once
from scheduler.engine.planning.row_sharing import bounded_cost
from scheduler.engine.scripted_backend import ScriptedDevice
from scheduler.shared.adapter_files import weights_bytes
from scheduler.shared.folder.reading import read_folder
from scheduler.shared.messages import (
    PROTOCOL_VERSION,
    GrammarTokenizer,
    KvCacheDtype,
    Load,
    Ready,
)
from scheduler.shared.model_fingerprint import fingerprint
from scheduler.shared.row_bytes import RowBytes

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def read(command: Load) -> tuple[Any, dict[str, Any]]:
    """Return mlx-lm's model, its weights not evaluated, and its configuration."""
    return read_model(Path(command.model_folder), command.max_model_len)


def unread_bytes(folder: Path, weights_dtype: str) -> tuple[int, RowBytes, RowBytes | None]:
    """Return the bytes of a model's weights, of its rows, and of rows packed into q8 if they can be, without
    reading any: MLX knows shapes and types of what it has not computed. Raise mlx-lm's errors."""
    model, config = read_model(folder)
    model = mend(_convert_weights(model, config, weights_dtype, lambda stage: None))
    cache = make_prompt_cache(model)
    model(mx.array([[0]]), cache=cache)
    weights_bytes, row = sum(value.nbytes for value in _arrays(model)), row_bytes(cache)
    packed = row_bytes(cache, PACKINGS["q8"]) if unpackable_size(cache) is None else row
    return weights_bytes, row, None if packed == row else packed


def load_weights(
    command: Load,
    report: Callable[[str], None],
    read: Callable[[Load], tuple[Any, dict[str, Any]]] = read,
) -> LoadedModel:
    """Load the model of `command`, run one token through it, and describe it. Raise what `load` does."""
    apply()
    report("reading weights")
    model, config = read(command)
    model = mend(_convert_weights(model, config, command.weights_dtype, report))
    shift_once(model)
    if has_float32_weights(model):
        keep_float32(os.environ)
    adapters_bytes = sum(weights_bytes(Path(adapter.folder)) for adapter in command.adapters)
    limit = limit_of(command, sum(value.nbytes for value in _arrays(model)) + adapters_bytes)
    device().limit_pool(limit.pool_bytes)
    device().limit_scores(limit.score_bytes)
    _evaluate(_arrays(model), report)
    if command.load_check != "off":
        report("fusing projections")
        _fuse(model, command)
    device().wire_weights(limit.limit_bytes)
    report("running one token")
    cache = make_prompt_cache(model)
    logits = model(mx.array([[0]]), cache=cache)
    mx.eval(logits)
    kv_cache_dtype = _kv_cache_dtype(command, cache)
    parameters, held = _arrays(model), row_bytes(cache, PACKINGS[kv_cache_dtype])
    description = Ready(
        version=PROTOCOL_VERSION,
        device=device().name,
        model_type=str(config.get("model_type", "unknown")),
        vocabulary=logits.shape[-1],
        kv_bytes_per_token=held.token_bytes,
        weights_bytes=sum(value.nbytes for value in parameters),
        weights_dtype=_dtype_names(parameters),
        kv_cache_dtype=kv_cache_dtype,
        memory_limit_bytes=limit.limit_bytes,
        memory_floor_bytes=limit.least_bytes,
        memory_whole_bytes=limit.whole_bytes,
        float32=device().float32,
    )
    return LoadedModel(model, description, held, limit, config)


def load(command: Load, report: Callable[[str], None]) -> MlxBackend:
    """Load the model of `command`, run one token through it, and describe it.

    Raise mlx-lm's error for a folder that is not a model it knows, and ModelUnusable.
    """
    read = _fingerprinting(command)
    loaded = load_weights(command, report)
    description, limit = loaded.description, loaded.memory_limit(command)
    report("checking the batch")
    kept = _verdict(loaded, command)
    device().free_buffers()
    tier = None
    if read is not None:
        report("scanning the disk tier")
        tier = _disk_tier(command, loaded.model, description, read)
    report("reading the tokenizer")
    grammars = _grammars(command.tokenizer, description.vocabulary, loaded.config)
    batching, kv_bytes = kept.batching, limit.kv_budget_bytes(limit.first_peak_bytes)
    description = msgspec.structs.replace(description, fallbacks=batching.fallbacks)
    held = loaded.row_bytes
    if not batching.batched and description.kv_cache_dtype != "auto":
        print("keys and values are not packed: the model runs one row at a time", file=sys.stderr)
        held = row_bytes(_used_cache(loaded.model))
        description = msgspec.structs.replace(
            description, kv_cache_dtype="auto", kv_bytes_per_token=held.token_bytes
        )
    return MlxBackend(
        replace(loaded, description=description, row_bytes=held),
        command,
        tier,
        group_cost_tokens=bounded_cost(kept.group_cost_tokens, held.token_bytes, kv_bytes),
        grammars=grammars,
        batching=batching,
    )


def _fuse(model: Any, command: Load) -> None:
    """Let layers of this model share products whose bits stay the same on this device, as far as is known or
    can be seen."""
    kept = _kept_verdicts(command)
    blas = [os.environ.get(name, "") for name in ("LD_PRELOAD", "OPENBLAS_NUM_THREADS")]
    software = (version("mlx"), device().name, device().float32, platform.mac_ver()[0], *blas)
    key = verdict_key(b"fused projections", *software)
    known = (kept.read(key, Exact) if kept is not None else None) or {}
    found = fuse(model, known)
    if kept is not None and found != known:
        kept.write(key, found)


def _kept_verdicts(command: Load) -> KeptVerdicts | None:
    return KeptVerdicts(Path(command.cache_folder) / "load-checks") if command.cache_folder else None


def _kv_cache_dtype(command: Load, used: Sequence[Any]) -> KvCacheDtype:
    """Return what the keys and values of a model that has run with these caches are packed into. If they
    cannot be packed, print why to stderr."""
    if command.kv_cache_dtype != "auto" and (size := unpackable_size(used)) is not None:
        print(
            f"keys and values are not packed: a head of {size} numbers is no multiple of 32", file=sys.stderr
        )
        return "auto"
    return command.kv_cache_dtype


def _used_cache(model: Any) -> list[Any]:
    """Return caches with which the model has run one token."""
    cache: list[Any] = make_prompt_cache(model)
    mx.eval(model(mx.array([[0]]), cache=cache))
    return cache


def _verdict(loaded: LoadedModel, command: Load) -> StoredVerdict:
    """Return how much of the batch is right for this model, and what a shared group costs it. Less than all
    is printed to stderr."""
    if command.load_check == "off":
        return StoredVerdict(Batching())
    model, description, held = loaded.model, loaded.description, loaded.row_bytes
    folder, key = _kept_verdicts(command), _verdict_key(model, loaded.config, command, description)
    kept = None if folder is None else folder.read(key, StoredVerdict)
    if kept is None:
        batching = _checked(loaded, command)
        cost, packing = None, PACKINGS[description.kv_cache_dtype]
        if batching.in_place:
            cost = group_cost_tokens(model, held, packing=packing)
        kept = StoredVerdict(batching, cost)
        if folder is not None:
            folder.write(key, kept)
    if fallbacks := kept.batching.fallbacks:
        print(f"the model runs with {' and '.join(fallbacks)}", file=sys.stderr)
    return kept


def _verdict_key(model: Any, config: dict[str, Any], command: Load, description: Ready) -> str:
    software = (version(name) for name in ("penstock", "mlx", "mlx-lm"))
    with_prefixes = str(command.kv_cache_bytes != 0)
    return verdict_key(
        json.dumps(config, sort_keys=True, default=str).encode(),
        *(*software, description.device, description.weights_dtype, with_prefixes, "drafts", "own rounding"),
        *_computed_as(command, model, description),
    )


def _computed_as(load: Load, model: Any, description: Ready) -> tuple[str, ...]:
    """Return what of this model's numbers is computed otherwise than by default, or than by earlier
    versions."""
    parts = [*mended_parts(model)]
    if release := platform.mac_ver()[0]:
        parts.append(f"macOS {release}")  # It has a part in Metal's kernels: MLX chooses others from 26.2 on.
    if description.weights_dtype == "float32" and device().float32 == "tf32":
        parts.append("tf32")
    if description.kv_cache_dtype != "auto":
        parts.append(f"keys and values in {description.kv_cache_dtype}")
    reading = read_folder(Path(load.model_folder))
    changes, rotary = reading.changes_for(load.max_model_len), reading.rotary
    if changes or rotary.scaling or rotary.share:
        how = [changes, rotary.scaling, rotary.share, load.max_model_len if rotary.grows else None]
        parts.append(f"read as {json.dumps(how, sort_keys=True, default=str)}")
    return tuple(parts)


_BOUNDLESS_BYTES = 1 << 50


class _Boundless(MlxBackend):
    """The back end of the check. What it computes does not depend on the memory that is left: its verdict is
    kept."""

    @property
    def device(self) -> Readings:
        return ScriptedDevice(lambda: 0)


def _checked(loaded: LoadedModel, command: Load) -> Batching:
    probe = msgspec.structs.replace(
        command, max_slots=CHECK_ROWS, prefill_rows=CHECK_ROWS, prefill_chunk_tokens=CHECK_CHUNK_TOKENS
    )

    def make(batching: Batching) -> MlxBackend:
        limit = MemoryLimit(0, kv_bytes=_BOUNDLESS_BYTES if probe.kv_cache_bytes else 0)
        return _Boundless(replace(loaded, limit=limit), probe, group_cost_tokens=0, batching=batching)

    description = loaded.description
    packing, prefixes = PACKINGS[description.kv_cache_dtype], command.kv_cache_bytes != 0
    return check(loaded.model, description.vocabulary, make, prefixes=prefixes, packing=packing)


def _grammars(source: GrammarTokenizer | None, vocabulary: int, config: dict[str, Any]) -> Grammars:
    """Return the grammars. Without a usable tokenizer only structured output is unavailable, which is printed
    to stderr."""
    if source is None:
        return Grammars(None)
    try:
        return Grammars(grammar_tokenizer(source, vocabulary, config))
    except Exception as error:  # The library raises several types.
        print(f"structured output is not available: {error}", file=sys.stderr)
        return Grammars(None)


def _fingerprinting(load: Load) -> Future[str] | None:
    """Return what becomes the model's fingerprint, read beside the load. Return None if no disk tier is
    requested, or if it is not available, which is printed to stderr."""
    if not load.kv_disk or load.kv_cache_bytes == 0:
        return None
    cache_folder, future = Path(load.cache_folder) if load.cache_folder else None, Future[str]()

    def run() -> None:
        try:
            future.set_result(fingerprint(Path(load.model_folder), cache_folder))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # The process does not wait for it at its end.
    return future


def _disk_tier(load: Load, model: Any, description: Ready, read: Future[str]) -> DiskTier | None:
    """Return the disk tier; None if it is not available, which is printed to stderr. Only weights that have
    never been read here are waited for."""
    # Another version of MLX, or another device, may round differently.
    software = f"mlx-lm {version('mlx-lm')}, mlx {version('mlx')}, {device().name}, {load.weights_dtype}"
    software = ", ".join([software, *_computed_as(load, model, description)])
    try:
        name = states_fingerprint(read.result(), description.weights_dtype, software)
        return DiskTier(Path(load.kv_disk), name, load.kv_disk_bytes)
    except (DiskTierUnavailable, OSError) as error:
        print(f"the disk tier is not available: {error}", file=sys.stderr)
        return None


_SLICE_BYTES = 1 << 30
"""Bytes of weights in one evaluation: all of a model of 300 GB in one take longer than Metal's watchdog waits
(mlx-lm #1572), and slices show progress. Converted weights then need both types of one slice only."""
_SHOWN_PARTS = 20
"""How often a load says how far it is, a line of the log each."""
_SHOWN_BYTES = 64 << 20
"""Less is read in no time."""


def _evaluate(weights: Sequence[mx.array], report: Callable[[str], None]) -> None:
    total, done, piece, piece_bytes = sum(array.nbytes for array in weights), 0, list[mx.array](), 0
    slice_bytes = min(_SLICE_BYTES, max(_SHOWN_BYTES, total // _SHOWN_PARTS))
    shown = 0
    for array in weights:
        piece.append(array)
        piece_bytes += array.nbytes
        if piece_bytes >= slice_bytes:
            mx.eval(piece)
            done, piece, piece_bytes = done + piece_bytes, [], 0
            if _SHOWN_PARTS * done // total > shown:
                shown = _SHOWN_PARTS * done // total
                report(f"reading weights: {100 * done // total} % of {total / 1e9:.1f} GB")
    mx.eval(piece)


def _arrays(model: Any) -> list[mx.array]:
    flat: Any = tree_flatten(model.parameters())
    return [value for _, value in flat]


def _convert_weights(
    model: Any, config: dict[str, Any], weights_dtype: str, report: Callable[[str], None]
) -> Any:
    """Convert weights to the type that the device computes fastest, or that was asked for.

    "auto" keeps the stored type on a GPU. On the CPU it is float32: there no BLAS knows 16-bit or packed
    weights. Steps of 1, 4, 8 and 32 rows of SmolLM2-135M in 4 bits take, in milliseconds of one core: in
    float32 (538 MB) 90, 81, 125 and 197; packed with float32 beside (115 MB) 127, 431, 831 and 3,184, and a
    prompt takes 20 times as long; as stored, with float16 beside, 4,378 for one row.
    """
    if weights_dtype == "auto":
        weights_dtype = "float32" if device().traits.wide_weights else "stored"
    if weights_dtype == "stored":
        return model
    report(f"converting weights to {weights_dtype}")
    packed = weights_dtype == "packed"
    if "quantization" in config and not packed:
        model = dequantize_model(model)
    model.set_dtype(mx.float32 if packed else _DTYPES[weights_dtype])
    return model


def _dtype_names(parameters: list[mx.array]) -> str:
    return ", ".join(sorted({str(value.dtype).removeprefix("mlx.core.") for value in parameters}))
