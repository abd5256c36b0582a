"""A model is loaded over two ranks, from folders of their own: the answers of one process, and nothing left
to the ranks to decide apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from scheduler.engine.mlx.pooling import loading as pooling_loading
from scheduler.models.random_qwen3 import Shape, write_model
from scheduler.shared.messages import RankGroup
from scheduler.shared.pooling import Pooler
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.sharding.loaded import load_over
from tests.scheduler.engine.mlx.sharding.ranks import Ranks

_SHAPE = Shape(
    hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, feed_forward=128, vocabulary=512, seed=1
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("models") / "divisible"
    write_model(_SHAPE, folder)
    return str(folder)


def _over(ranks: Ranks, folders: tuple[str, str], *changes: dict[str, Any]) -> list[dict[str, Any]]:
    told = [json.dumps([folder, each]) for folder, each in zip(folders, changes, strict=True)]
    return ranks.play(load_over.__module__, *told, seconds=120.0)


def _decided(said: dict[str, Any]) -> dict[str, Any]:
    """All but what is measured."""
    return {name: value for name, value in said.items() if name != "peak_bytes"}


def test_two_ranks_answer_as_one_process_does(two_ranks: Ranks, folder: str, tmp_path: Path) -> None:
    """Greedy and seeded, with penalties, behind a prefix that is new and one that is known. Each has half the
    keys and values, and neither has a disk tier."""
    fields = {"kv_disk": str(tmp_path / "disk"), "kv_disk_bytes": 1 << 20}
    alone = load_over(folder, None, {})
    first, second = _over(two_ranks, (folder, folder), fields, fields)
    assert _decided(first) == _decided(second)
    assert first["tokens"] == alone["tokens"]
    for mine, theirs in zip(first["logprobs"], alone["logprobs"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)
    assert first["ready"]["ranks"] == 2
    assert first["ready"]["kv_bytes_per_token"] * 2 == alone["ready"]["kv_bytes_per_token"]
    assert first["ready"]["weights_bytes"] < alone["ready"]["weights_bytes"]
    assert first["ready"]["fallbacks"] == list(alone["ready"]["fallbacks"]) == []
    assert not first["disk"]


def test_ranks_pack_the_keys_and_values_of_their_heads(two_ranks: Ranks, tmp_path: Path) -> None:
    """Each half of them, as one process packs all: the first tokens' log-probabilities are its own."""
    write_model(replace(_SHAPE, head_dim=32), tmp_path)
    fields = {"kv_cache_dtype": "q8"}
    alone = load_over(str(tmp_path), None, fields)
    first, second = _over(two_ranks, (str(tmp_path), str(tmp_path)), fields, fields)
    assert _decided(first) == _decided(second)
    assert first["ready"]["kv_cache_dtype"] == alone["ready"]["kv_cache_dtype"] == "q8"
    assert first["ready"]["kv_bytes_per_token"] * 2 == alone["ready"]["kv_bytes_per_token"] == 2 * 2 * 2 * 40
    for mine, theirs in zip(first["logprobs"], alone["logprobs"], strict=True):
        assert mine[0] == pytest.approx(theirs[0], abs=0.01)
    assert first["ready"]["fallbacks"] == list(alone["ready"]["fallbacks"]) == []


def test_quantised_weights_stay_packed_on_each_rank(two_ranks: Ranks, folder: str, tmp_path: Path) -> None:
    model, config = load_model(Path(folder))
    model, config = quantize_model(model, config, group_size=32, bits=4)
    packed = str(tmp_path / "packed")
    save_model(packed, model)
    save_config(dict(config), config_path=Path(packed) / "config.json")
    stored = {"weights_dtype": "stored", "load_check": "off"}
    alone = load_over(packed, None, stored)
    first, second = _over(two_ranks, (packed, packed), stored, stored)
    assert _decided(first) == _decided(second)
    assert first["tokens"] == alone["tokens"]
    assert first["ready"]["weights_dtype"] == alone["ready"]["weights_dtype"] == "float32, uint32"
    assert first["ready"]["weights_bytes"] < alone["ready"]["weights_bytes"]


def test_rank_0s_verdict_is_that_of_all(two_ranks: Ranks, folder: str, tmp_path: Path) -> None:
    """A rank with a verdict of an earlier start would leave the other alone in the check's collectives."""
    kept = [{"cache_folder": str(tmp_path / name)} for name in ("first", "second")]
    found = _over(two_ranks, (folder, folder), *kept)
    assert found[0]["group_cost_tokens"] == found[1]["group_cost_tokens"], "each timed it for itself"
    (verdict,) = (tmp_path / "first" / "load-checks").iterdir()
    said = json.loads(verdict.read_text())
    said["verdict"]["batching"]["in_place"] = False
    verdict.write_text(json.dumps(said))
    for other in (tmp_path / "second" / "load-checks").iterdir():
        other.unlink()
    again = _over(two_ranks, (folder, folder), *kept)
    assert [each["ready"]["fallbacks"] for each in again] == [["copied_prefixes"]] * 2
    assert [each["tokens"] for each in again] == [each["tokens"] for each in found]


def test_the_least_memory_of_the_ranks_is_that_of_all(two_ranks: Ranks, folder: str) -> None:
    """Prefix caches evict alike only with equal budgets."""
    limits = [float(size << 20) for size in (4096, 1024)]
    memory = [{"memory_limit": limit, "kv_cache_bytes": -1, "load_check": "off"} for limit in limits]
    first, second = _over(two_ranks, (folder, folder), *memory)
    assert _decided(first) == _decided(second)
    # Half of it: the ranks are on one machine.
    assert first["ready"]["memory_limit_bytes"] == 512 << 20


def test_ranks_with_different_models_are_refused(two_ranks: Ranks, folder: str, tmp_path: Path) -> None:
    """By name, before they compute: a collective of two shapes would never end."""
    wider = tmp_path / "wider"
    write_model(Shape(**{**_SHAPE_FIELDS, "feed_forward": 192}), wider)
    for each in _over(two_ranks, (folder, str(wider)), {}, {}):
        assert "rank 1 differs: its model is qwen3" in each["refused"]


_SHAPE_FIELDS = {name: getattr(_SHAPE, name) for name in _SHAPE.__dataclass_fields__}


def test_no_rank_holds_the_whole_model_at_any_moment(two_ranks: Ranks, tmp_path: Path) -> None:
    """A model may be larger than a machine: weights are read by slices, and each rank keeps its part."""
    large = {"hidden": 512, "feed_forward": 2048, "layers": 4, "heads": 8, "kv_heads": 2, "head_dim": 64}
    write_model(Shape(**{**_SHAPE_FIELDS, **large}), tmp_path / "large")
    folder = str(tmp_path / "large")
    whole_bytes = (tmp_path / "large" / "model.safetensors").stat().st_size
    unasked = {"load_check": "off", "silent": True}
    for each in _over(two_ranks, (folder, folder), unasked, unasked):
        assert each["ready"]["weights_bytes"] < 0.55 * whole_bytes
        assert each["peak_bytes"] < 0.8 * whole_bytes


def test_adapters_are_refused_by_name(two_ranks: Ranks, folder: str) -> None:
    adapter = {"adapters": [["poet", folder, "12ab"]], "load_check": "off", "silent": True}
    for each in _over(two_ranks, (folder, folder), adapter, adapter):
        ((key, reason),) = each["ready"]["refused_adapters"]
        assert (key, "poet" in reason, "without --ranks" in reason) == ("12ab", True, True)


def test_an_embedder_is_refused_by_name(folder: str) -> None:
    group = RankGroup(2, "ring", ())
    command = load_of(Path(folder), ranks=group, pooler=Pooler("embedding", "last"))
    with pytest.raises(Exception, match="without --ranks"):
        pooling_loading.load(command, lambda stage: None)
