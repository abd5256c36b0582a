"""A model of the shape of Qwen3-8B with random weights, made on the device: servers and steps with it."""

from __future__ import annotations

import gc
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mlx.core as mx
import trio

from loadtests import scenario as scenarios
from loadtests.compare import Comparison
from loadtests.device import rows, step_pairs, steps
from loadtests.device.finding import Figure, Finding, attempt
from loadtests.driver import default_client
from loadtests.launch import Bench, LaunchError, Patience, with_server
from loadtests.measure import measure
from loadtests.presets import PRESETS
from loadtests.targets import Launch, Target
from scheduler.engine.mlx.cpu.fast_blas import BlasChoice
from scheduler.engine.mlx.device import device
from scheduler.models.random_qwen3 import TINY, TOKENIZER_FILES, TOKENIZER_FOLDER, Shape, layout, model_config

QWEN3_8B = Shape(
    hidden=4096, layers=36, heads=32, kv_heads=8, head_dim=128, feed_forward=12288, vocabulary=151936
)
_GROUP = 64
_MEMORY_FILES = Path("/dev/shm")
_ROOM = 1.25
"""Times the model's bytes that must be free there."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the model is, and what is asked of it. `clients`: by server."""

    shape: Shape
    clients: Mapping[str, Sequence[int]]
    shared_tokens: int
    seconds: float
    """The measured time of one run of clients; its warm-up takes as long."""
    step_rows: Sequence[int]
    prefixes: Sequence[int]


FULL = Sizes(
    QWEN3_8B, {"penstock": (1, 8, 32, 128), "mlx_lm.server": (1, 8, 32)}, 4096, 4.0, (1, 8, 32), (0, 4096)
)
QUICK = Sizes(TINY, {"penstock": (2,), "mlx_lm.server": (2,)}, 64, 0.5, (2,), (64,))
QUICK_PACKED = Sizes(TINY, {}, 64, 0.5, (2,), ())


def findings(
    sizes: Sizes, bits: int | None, environment: Mapping[str, str], blas: BlasChoice
) -> Iterator[Finding]:
    """Measure the model in bfloat16, or packed in this number of bits."""
    with _folder(sizes.shape, bits) as folder:
        yield attempt("weights", lambda: _made(sizes.shape, bits, folder))
        yield from _steps(sizes, folder, environment)
        backend = rows.loaded(folder)
        yield from steps.decode_findings(backend, sizes.step_rows, turns=2)
        del backend
        gc.collect()
        device().clear_pool()
        for name, clients in sizes.clients.items():
            # Penstock's 128 clients share a prefix; beside it others copy it for each.
            yield from _served(name, clients, sizes, folder, blas)


@contextmanager
def _folder(shape: Shape, bits: int | None) -> Iterator[Path]:
    """Make a folder in memory where there is room, so that no disk decides how long a start takes."""
    weights = sum(_count(size) for _, size, _ in layout(shape, tied=False)) * (bits or 16) // 8
    room = _MEMORY_FILES.is_dir() and shutil.disk_usage(_MEMORY_FILES).free > _ROOM * weights
    with tempfile.TemporaryDirectory(prefix="penstock-model-", dir=_MEMORY_FILES if room else None) as folder:
        yield Path(folder)


def _count(size: tuple[int, ...]) -> int:
    return size[0] * (size[1] if len(size) == 2 else 1)


def _made(shape: Shape, bits: int | None, folder: Path) -> Finding:
    for name in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER_FOLDER / name, folder / name)
    config = {**model_config(shape, tied=False), "torch_dtype": "bfloat16"}
    if bits is not None:
        config["quantization"] = {"group_size": _GROUP, "bits": bits}
    (folder / "config.json").write_text(json.dumps(config))
    mx.random.seed(shape.seed)
    tensors: dict[str, mx.array] = {}
    total = number = 0
    for name, size, value in layout(shape, tied=False):
        tensors |= _tensor(name, size, value, bits)
        if name.endswith("post_attention_layernorm.weight") or name.startswith("lm_head"):  # A layer a file.
            total += sum(tensor.nbytes for tensor in tensors.values())
            mx.save_safetensors(str(folder / f"model-{number:05}.safetensors"), tensors, {"format": "pt"})
            tensors, number = {}, number + 1
    device().clear_pool()
    return Finding("weights", "measured", {"bytes": total, "bits": bits or 16, "layers": shape.layers})


def _tensor(name: str, size: tuple[int, ...], value: float, bits: int | None) -> dict[str, mx.array]:
    """`value`: of all numbers of a vector, the deviation of a matrix's."""
    if len(size) == 1:
        return {name: mx.full(size, value, mx.bfloat16)}
    half_width = value * 3**0.5
    matrix = mx.random.uniform(-half_width, half_width, size).astype(mx.bfloat16)
    if name.startswith("lm_head"):
        # The tokenizer has no text for the others, so their logits are near zero.
        known = mx.arange(size[0])[:, None] < rows.KNOWN_TOKENS
        matrix = mx.where(known, matrix, 0.02 * matrix).astype(mx.bfloat16)
    if bits is None:
        tensors = {name: matrix}
    else:
        words, scales, biases = mx.quantize(matrix, _GROUP, bits)
        stem = name.removesuffix("weight")
        tensors = {name: words, f"{stem}scales": scales, f"{stem}biases": biases}
    mx.eval(tensors)
    return tensors


def _steps(sizes: Sizes, folder: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """The decode step of our engine and of a bare `BatchGenerator`, in turn."""
    if not sizes.prefixes:
        return
    wanted = [step_pairs.Size(count, prefix) for prefix in sizes.prefixes for count in sizes.step_rows]
    token_bytes = sizes.shape.kv_bytes_per_token // 2
    most_bytes = int(rows.free_bytes() * 0.5)
    pairs = step_pairs.measure(wanted, folder, environment, token_bytes, most_bytes)
    try:
        for pair in pairs:
            ours, size = pair.ours, pair.ours.size
            figures: dict[str, Figure] = {
                "ours_ms": 1000 * ours.seconds,
                "tokens_per_second": size.rows / ours.seconds,
                "kv_MB": ours.kv_bytes / 1e6,
                "bare_ms": 1000 * pair.bare.seconds if pair.bare else "no memory",
                "of_bare_tokens_per_second": pair.bare.seconds / ours.seconds if pair.bare else "no memory",
            }
            name = f"steps of {size.rows} rows behind {size.prefix_tokens} shared tokens"
            yield Finding(name, "measured", figures)
    except Exception as error:
        yield Finding("steps", "raised", detail=f"{type(error).__name__}: {error}")


def _served(
    name: str, clients: Sequence[int], sizes: Sizes, folder: Path, blas: BlasChoice
) -> Iterator[Finding]:
    program = None if name == "penstock" else Path(sys.executable).with_name(name)
    launch = Launch(name, PRESETS[name], program)
    bench = Bench(folder, blas, max(clients), Patience(start_seconds=90.0, stop_seconds=5.0))
    found: list[Finding] = []

    async def asked(target: Target) -> None:
        for count in clients:
            made = await _run(target, count, sizes)
            found.append(made)

    try:
        trio.run(partial(with_server, launch, bench, asked))
    except (LaunchError, OSError) as error:
        found.append(Finding(f"{name}: start", "raised", detail=str(error)[-300:]))
    yield from found


async def _run(target: Target, clients: int, sizes: Sizes) -> Finding:
    chosen = scenarios.load(
        "throughput",
        (
            f"clients.arrivals.clients={clients}",
            f"clients.prompt.shared_tokens={sizes.shared_tokens}",
            f"warm_up_seconds={sizes.seconds}",
            f"bounds.seconds={2 * sizes.seconds}",
            f"bounds.request_seconds={max(10.0, 2 * sizes.seconds)}",
        ),
    )
    comparison = Comparison(
        chosen, default_client(chosen.bounds.request_seconds), lambda name, progress: None
    )
    await comparison.run([target], 1)
    found = measure(comparison.runs[0])
    names = ("output_tokens_per_second", "ttft_p50", "ttft_p95", "itl_p50", "itl_p99", "cached_share")
    values = {one: found.value(one) for one in names}
    figures: dict[str, Figure] = {one: "none" if value is None else value for one, value in values.items()}
    figures["failures"] = sum(one.count for one in found.failures)
    return Finding(f"{target.name}: {clients} clients", "measured", figures)
