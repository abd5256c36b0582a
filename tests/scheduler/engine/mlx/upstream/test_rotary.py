"""Scaled rotary positions reach every module of mlx-lm, or the folder is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.mlx.folder_model import read_model
from scheduler.engine.mlx.upstream.rotary import _is_plain, _ropes
from scheduler.shared.folder.mlx_lm_module import module_of
from scheduler.shared.folder.reading import read_folder
from tests.examples import sampled
from tests.scheduler.engine.mlx.zoo import tiny
from tests.scheduler.engine.mlx.zoo.census import ENTRIES, names, write
from tests.scheduler.engine.mlx.zoo.tiny import configuration

_SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
_OWN_FORM = {
    "deepseek_v2": "always YaRN, by its own fields",
    "hunyuan": "its own form of dynamic positions",
    "minicpm3": "always longrope",
    "phimoe": "longrope only: other fields are missing",
    "telechat3": "a kind of YaRN of its own",
    "minicpm": "mlx-lm does not load the tiny model again: a tied head",
    "prism_hadamard_qwen35": "mlx-lm does not load the tiny model again: random signs",
    "qwen3_vl_moe": "mlx-lm does not load the tiny model again: a tied head",
}
_OWN_BASE = {"recurrent_gemma"}
_SAMPLE = ["qwen3_moe", "mixtral", "phi3", "gemma2", "qwen2_moe", "deepseek", "lfm2", "llama", "deepseek_v3"]


def _families() -> list[str]:
    """All modules that read the usual fields from the top or the text's part of config.json."""
    return [name for name in names() if "+" not in name and name not in _OWN_FORM and _turned(name)]


def _turned(name: str) -> bool:
    try:
        config = configuration(name, ENTRIES.get(name, {}))
    except KeyError:
        return False
    module = module_of(str(config["model_type"]))
    bases = {"rope_theta", "rotary_emb_base"}
    return module is not None and bool(bases & module.declared) and "rope_parameters" not in config


def _rewritten(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    part = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    part.update(fields)
    (folder / "config.json").write_text(json.dumps(config))


def _kinds(model: Any) -> set[str]:
    return {type(rope).__name__ if not _is_plain(rope) else "plain" for _, _, rope in _ropes(model)}


@pytest.mark.parametrize("name", sampled(_families(), _SAMPLE))
def test_a_scaling_is_computed(name: str, tmp_path: Path) -> None:
    """Also where the module has no field for it, or takes other kinds only."""
    write(name, tmp_path)
    plain = _kinds(read_model(tmp_path)[0])
    for kind, fields in _SCALINGS.items():
        if plain != {"plain"}:
            continue  # The zoo's entry is scaled already.
        _rewritten(tmp_path, rope_scaling={"type": kind, "rope_type": kind, **fields})
        assert _kinds(read_model(tmp_path)[0]) != {"plain"}, kind


@pytest.mark.parametrize("name", sampled(_families(), [*_SAMPLE, *_OWN_BASE]))
def test_the_base_is_the_configured_one_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some modules have a base in their code."""
    for field in ("rope_theta", "rotary_emb_base"):
        monkeypatch.setitem(tiny.SIZES, field, 54_321.0)
    write(name, tmp_path)
    if name not in _OWN_BASE:
        read_model(tmp_path)
        return
    with pytest.raises(LoadRefused, match=r"54321\.0 for the base of rotary positions"):
        read_model(tmp_path)


def _yarn(dims: int, base: float, scaling: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The wavelengths of YaRN as transformers computes their inverses."""
    extra = base ** (np.arange(0, dims, 2) / dims)

    def dimension(turns: float) -> float:
        original = scaling["original_max_position_embeddings"]
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(32.0), dimension(1.0)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    kept = 1 - np.clip((np.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
    lengths: np.ndarray[Any, Any] = 1 / ((1 - kept) / (scaling["factor"] * extra) + kept / extra)
    return lengths


def test_yarn_of_qwen_3_5_counts_beside_the_axes_of_pictures(tmp_path: Path) -> None:
    """Its publisher's way to a million tokens."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    write("qwen3_5", tmp_path)
    fields = {"mrope_section": [1, 1, 2], "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    _rewritten(tmp_path, rope_parameters=yarn | fields, max_position_embeddings=4096)
    assert read_folder(tmp_path).context.tokens == 16384
    ropes = [rope for _, _, rope in _ropes(read_model(tmp_path)[0])]
    assert ropes
    for rope in ropes:
        assert np.allclose(np.array(rope._freqs), _yarn(rope.dims, 10_000.0, yarn), rtol=1e-5)


@pytest.mark.parametrize(("served", "growth"), [(None, 1), (4096, 1), (8192, 3)])
def test_the_dynamic_type_has_one_base_for_the_served_context(
    served: int | None, growth: int, tmp_path: Path
) -> None:
    """vLLM's: a base that grows with a sequence would depend on chunks and on what is cached."""
    write("llama", tmp_path)
    _rewritten(tmp_path, rope_scaling={"type": "dynamic", "factor": 2.0})
    for _, _, rope in _ropes(read_model(tmp_path, served)[0]):
        assert rope.base == pytest.approx(10_000.0 * growth ** (rope.dims / (rope.dims - 2)))
