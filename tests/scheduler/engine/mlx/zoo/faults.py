"""What is known to be wrong with a module in the engine, and why: `make zoo` and the tests take each for a
fault that is there, and fail on the day that it is not.

A file of its own because entries leave it as faults are mended, and nothing else changes with them.
"""

from __future__ import annotations

_NO_KEYS_AND_VALUES = "the model calls `cache.keys_and_values()`, which `BatchRows` does not have"
_NO_MERGE = "the model's own kind of cache has no `merge`"
_ONE_ROW = "mlx-lm's attention takes no mask per row"
_MASK_ONLY = (
    "no `make_cache`: windowed layers have `KVCache`, and the window is in the mask only, which `BatchRows` "
    "makes of the private part: tokens that are shared in place are seen whole"
)
_RING_MASK = (
    "mlx-lm's `BatchRotatingKVCache.make_mask` is off by one in left padding, for a chunk of several tokens "
    "after a step of one, once the ring has turned"
)

FAULTS: dict[str, str] = {
    "afm7": _NO_KEYS_AND_VALUES,
    "gemma3n": _NO_KEYS_AND_VALUES,
    "llama4": _NO_MERGE,
    "deepseek_v41": _NO_MERGE,
    "gemma2": _ONE_ROW,
    "gpt_bigcode": "mlx-lm's position ids are of one row",
    "phi3small": "mlx-lm's mask of sparse blocks is of one row, and is misaligned where a prompt is cut",
    "nemotron-nas+linear": "attention that is a linear layer never writes its cache, which `cut` asserts",
    "recurrent_gemma": "the first token of a row without a state is scaled, a new row of a batch has zeros; "
    + _RING_MASK,
    "mistral3+windows": _MASK_ONLY,
    "mistral3+llama": _MASK_ONLY,
    "pixtral+windows": _MASK_ONLY,
    "minimax_m3_vl": "sparse blocks are counted by cache slot, which left padding shifts",
    "longcat_flash_ngram": "a prompt shorter than the n-gram leaves a narrower state, which no row can join",
    "baichuan_m1": _RING_MASK,
    "plamo3": "mlx-lm masks window + 1 tokens over a ring of window: a prompt's cuts show",
}
