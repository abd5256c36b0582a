"""Every model of the zoo that mlx-lm can split: the same answers over two ranks as in one process.

`python -m tests.scheduler.engine.mlx.sharding.split_zoo [NAME ...]` plays all scenes of the zoo on each of
them, both ranks driven alike, held to mlx-lm's unsplit model alone, and prints a table.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx.kv.cache_layout import row_bytes
from scheduler.engine.mlx.sharding.group_forming import form_group
from scheduler.engine.mlx.sharding.rank import Rank, RanksUnusable
from scheduler.engine.mlx.sharding.split import split, way_of
from scheduler.engine.mlx.upstream.mend import mend
from tests.scheduler.engine.mlx.reuse import checked
from tests.scheduler.engine.mlx.sharding.ranks import Ranks
from tests.scheduler.engine.mlx.zoo.census import build, build_exact, names
from tests.scheduler.engine.mlx.zoo.check import Trial, words
from tests.scheduler.engine.mlx.zoo.tiny import SIZES

_WIDE: dict[str, Any] = {
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_heads", "n_head", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_kv_heads", "swa_num_key_value_heads"), 2),
    "num_attention_groups": 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "index_n_heads": 2,
    "o_groups": 2,
}
"""Sizes that two ranks divide, instead of the zoo's own."""


_HERE = "tests.scheduler.engine.mlx.sharding.split_zoo"


@contextmanager
def wide() -> Iterator[None]:
    before = {name: SIZES[name] for name in _WIDE if name in SIZES}
    SIZES.update(_WIDE)
    try:
        yield
    finally:
        for name in _WIDE:
            del SIZES[name]
        SIZES.update(before)


def run(rank: Rank, name: str, scenes: str = "", forced: str = "") -> dict[str, Any]:
    """Return what one rank finds: what the scenes show (all of them, or those named, with commas), how
    far the logits of one prompt are from the unsplit model's, as a fraction of the largest, and its bytes
    of a token. `forced` is a way to split, whatever would be chosen."""
    with wide():
        model, model_type = build(name)
        part = mend(copy.deepcopy(model))
        try:
            way: Any = forced or way_of(part, rank.group.ranks)
        except RanksUnusable as refused:
            return {"refused": str(refused)}
        split(part, form_group(rank.group, rank.number), way)
        prompt = mx.array([words(70, 3)])
        whole_cache, part_cache = make_prompt_cache(model), make_prompt_cache(part)
        whole, found = model(prompt, cache=whole_cache), part(prompt, cache=part_cache)
        mx.eval(whole, found)
        apart = float(mx.max(mx.abs(whole - found)) / mx.max(mx.abs(whole)))
        said = {
            "way": way,
            "logits": apart,
            "bytes": [asdict(row_bytes(cache)) for cache in (whole_cache, part_cache)],
        }
        trial = Trial(model, model_type, build_exact(name) if "@" in name else None)
        trial._model = part
        if scenes:
            trial._batching = checked(part, model_type).batching
            shown = {one: trial.played(one) for one in scenes.split(",")}
            return said | {"scenes": shown, "fallbacks": trial._batching.fallbacks}
        return said | asdict(trial.verdict())


def candidates() -> list[str]:
    """Names of the zoo whose modules mlx-lm can split."""
    found = []
    for name in names():
        try:
            way_of(build(name)[0], 1)
        except RanksUnusable:
            continue
        found.append(name)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--way", choices=("tensor", "pipeline"), default="", help="whatever would be chosen")
    parser.add_argument("--seconds", type=float, default=900)
    options = parser.parse_args(arguments)
    ranks, surprises = Ranks(), list[str]()
    print("| module | way | outcome | logits | log-probabilities | bytes of a token | fallbacks |")
    print("|---" * 7 + "|")
    try:
        for name in options.names or candidates():
            row = _row(ranks, name, options.way, options.seconds)
            print(f"| {name} | {row} |", flush=True)
            if "| right |" not in row:
                surprises.append(name)
    finally:
        ranks.close()
    if surprises:
        print(f"wrong: {', '.join(surprises)}")
    return 1 if surprises else 0


def _row(ranks: Ranks, name: str, way: str, seconds: float) -> str:
    """Return the row of the table, behind the name."""
    try:
        first, second = ranks.play(_HERE, name, "", way, seconds=seconds)
    except AssertionError as error:
        return f"fails | {' '.join(str(error)[-300:].split())}"
    if first != second:
        return f"ranks differ | {first} | {second}"
    if "refused" in first:
        return f"refused | {first['refused']}"
    wrong = [f"{scene}: {shown}" for scene, shown in first["scenes"].items() if shown != "right"]
    whole, part = (each["token_bytes"] for each in first["bytes"])
    fallbacks = ", ".join(first["fallbacks"])
    return (
        f"{first['way']} | {'; '.join(wrong) or 'right'} | {first['logits']:.0e} | {first['largest']:.0e}"
        f" | {whole} to {part} | {fallbacks}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
