"""What a decode step takes with packed keys and values, in turn with those that are not:
`python -m tests.scheduler.engine.mlx.packed_bench FOLDER`, beside a BLAS as the engine has it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, get_args

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx.kv.cache_layout import CacheLayout
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.packed import PACKINGS, packed
from scheduler.engine.mlx.upstream.apply import apply
from scheduler.engine.prefix.nodes import Lease
from scheduler.shared.messages import KvCacheDtype
from tests.real_model.alone import in_float32

_CASES = ((1, 0, 8000), (8, 0, 1000), (32, 4096, 64), (32, 0, 256))
"""Rows, tokens that they share, and tokens of each one's own."""
_TURNS = 7


def _step(
    model: Any, name: KvCacheDtype, rows: int, shared: int, own: int
) -> tuple[Callable[[], None], Callable[[], int]]:
    """Return a decode step of rows behind random numbers, and what gives the bytes of all keys and values."""
    used: list[Any] = make_prompt_cache(model)
    mx.eval(model(mx.array([[1]]), cache=used))
    layout = CacheLayout(model, PACKINGS[name])

    def numbers(half: mx.array, tokens: int) -> mx.array:
        return mx.random.normal((1, half.shape[1], tokens, half.shape[3]))

    def segment(tokens: int) -> KvSegment:
        layers = [
            packed(numbers(layer.keys, tokens), numbers(layer.values, tokens), layout.packing)
            for layer in used
        ]
        return KvSegment(layers, tokens)

    pieces = tuple((segment(tokens), tokens) for tokens in (shared, own) if tokens)
    lease: Lease[Any, Any] = Lease(shared + own, pieces, None, None)
    starts = [layout.start(lease, 1 if shared else 0, 64) for _ in range(rows)]
    batch = [layers[0].merge(list(layers)) for layers in zip(*starts, strict=True)]
    inputs = mx.array([[1]] * rows)
    in_place = pieces[0][0].nbytes if shared else 0
    return lambda: mx.eval(
        model(inputs, cache=batch)
    ), lambda: in_place + sum(layer.nbytes for layer in batch)


def main() -> None:
    apply()
    model = in_float32(Path(sys.argv[1]))
    names: tuple[KvCacheDtype, ...] = get_args(KvCacheDtype)
    for case in _CASES:
        steps = [_step(model, name, *case) for name in names]
        seconds: list[list[float]] = [[] for _ in names]
        for turn in range(_TURNS + 2):
            for own, (step, _) in zip(seconds, steps, strict=True):
                begun = time.process_time()
                step()
                own += [time.process_time() - begun] if turn >= 2 else []
        first = median(seconds[0])
        print("{} rows, {} shared tokens, {} own:".format(*case))
        for name, own, (_, nbytes) in zip(names, seconds, steps, strict=True):
            print(
                f"  {name:5} {1000 * median(own):6.0f} ms, {median(own) / first:.2f}, {nbytes() / 1e6:.0f} MB"
            )


if __name__ == "__main__":
    main()
