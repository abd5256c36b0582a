"""Both sides of every branch that depends on the device, on the CPU, by forcing the choice.

In float32 they give the same greedy tokens. Seeded rows draw other random numbers on the host than in MLX's
graph, so a seed's answer on x86 is not its answer on a GPU; on each it depends on nothing but the request.
"""

from __future__ import annotations

import ast
import gc
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest

from scheduler.engine.device import Traits
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.device import ARM, CUDA, METAL, X86, MlxDevice, device, forced
from scheduler.engine.mlx.kv.batch_geometry import BatchGeometry
from scheduler.engine.mlx.kv.batch_rows import BatchRows
from scheduler.engine.mlx.kv.padded_rows import PaddedRows
from scheduler.engine.mlx.loading import load
from scheduler.engine.pace import PrefillPace
from scheduler.errors import RequestRefused
from scheduler.shared.messages import Submit
from tests.contracts.journal import GREEDY, prefixes_of, request
from tests.examples import sampled
from tests.repo.tree import ROOT, modules
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words

OTHERS = {"metal": METAL, "cuda": CUDA, "arm": ARM}

BRANCHES = {
    ("backend.py", "evaluation_seconds"): "upstream/test_layer_slices.py",
    ("backend.py", "most_buffers"): "test_devices.py",
    ("batch.py", "submission_waits"): "test_batch.py",
    ("kv/batch_rows.py", "exp_is_slow"): "test_devices.py",
    ("cpu/softmax.py", "exp_is_slow"): "cpu/test_softmax.py",
    ("upstream/gate.py", "exp_is_slow"): "cpu/test_swiglu.py",
    ("device.py", "kind"): "test_devices.py",
    ("device.py", "most_score_bytes"): "sixteen_bit/test_attention.py",
    ("loading.py", "wide_weights"): "test_loading.py",
    ("packed.py", "kind"): "test_packed.py",
    ("packed.py", "multiplies_packed"): "test_packed.py",
    ("pooling/backend.py", "evaluation_seconds"): "pooling/test_vectors.py",
    ("sampling/row_sampling.py", "exp_is_slow"): "test_devices.py",
    ("fusing.py", "kind"): "test_fusing.py",
    ("upstream/attention.py", "exp_is_slow"): "sixteen_bit/test_attention.py",
    ("upstream/products.py", "kind"): "test_fusing.py",
}
"""Who asks for a trait, and the test that forces both sides of it."""


def _asked(path: Path) -> Iterator[str]:
    """The traits that a module reads."""
    for node in ast.walk(ast.parse(path.read_text())):
        of = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.Attribute) and isinstance(of, ast.Attribute) and of.attr == "traits":
            yield node.attr


def test_every_branch_is_forced_to_both_sides_somewhere() -> None:
    """A new use of a trait needs an entry above, and its test."""
    folder = ROOT / "scheduler/engine/mlx"
    found = {
        (str(path.relative_to(folder)), trait)
        for path in modules("scheduler/engine/mlx")
        for trait in _asked(path)
    }
    assert found == BRANCHES.keys()
    for test in BRANCHES.values():
        assert "forced(" in (ROOT / "tests/scheduler/engine/mlx" / test).read_text()


def _requests(engine: ReuseEngine, seed: int, **sampling: Any) -> list[Submit]:
    """Ragged prompts, half of them behind one prefix; with penalties, which are computed on x86's host."""
    generator = random.Random(seed)
    prefix = words(40, seed)
    ways: list[dict[str, Any]] = [
        {},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.3},
        {"logit_bias": ((7, 1.5),)},
    ]
    return [
        engine.submit(
            (prefix if at % 2 else [])
            + [generator.randrange(300) for _ in range(generator.randrange(1, 50))],
            max_tokens=generator.randrange(4, 12),
            boundaries=(40,) if at % 2 else (),
            sampling=msgspec.structs.replace(GREEDY, **ways[at % 4], **sampling, seed=at),
        )
        for at in range(8)
    ]


@cache
def _tokens(family: str, device: Traits, seed: int, **sampling: Any) -> list[list[int]]:
    """They join one after another, and decode a step ahead."""
    with forced(device):
        engine = engine_of(family)
        submits = _requests(engine, seed, **sampling)
        for submit in submits:
            engine.iterate([submit])
            engine.iterate()
        engine.finish()
    return [engine.heard[submit.request_id].tokens for submit in submits]


@pytest.mark.parametrize("family", sampled(["qwen3", "gpt_oss", "lfm2"], ["gpt_oss"]))
def test_greedy_tokens_are_the_same_whatever_the_device(family: str) -> None:
    """Attention by MLX or by us, gate and softmax on the host or in the graph, draws at once or deferred."""
    expected = _tokens(family, X86, 3)
    assert len({tuple(tokens) for tokens in expected}) > 4
    for name, traits in OTHERS.items():
        assert _tokens(family, traits, 3) == expected, name


@pytest.mark.parametrize(("device", "chunk"), [(METAL, "causal"), (CUDA, "causal"), (X86, None)])
def test_rows_without_padding_need_no_mask(device: Traits, chunk: str | None) -> None:
    """Kernels that are fused with an array read it in each layer; CUDA has none for a decode step."""
    with forced(device):
        even = BatchRows(0, PaddedRows([0, 0], 8), BatchGeometry(((), ()), (0, 0)))
        ragged = BatchRows(0, PaddedRows([0, 3], 8), BatchGeometry(((), ()), (0, 3)))
        assert even.make_mask(1) is None
        mask = even.make_mask(4)
        assert isinstance(mask, mx.array) if chunk is None else mask == chunk
        assert even.make_mask(4, return_array=True).shape == (2, 1, 4, 12)
        assert even.make_mask(4, window_size=3).shape == (2, 1, 4, 12)
        assert ragged.make_mask(1).shape == (2, 1, 1, 9)
        assert ragged.make_mask(4).shape == (2, 1, 4, 12)


@pytest.mark.parametrize("device", [METAL, CUDA], ids=["metal", "cuda"])
def test_fused_attention_gets_no_mask_where_no_row_is_padded(
    device: Traits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row alone, and rows of one length together: in their chunks and in every decode step."""
    masks: list[object] = []
    fused = mx.fast.scaled_dot_product_attention

    def attend(*args: Any, mask: Any = None, **fields: Any) -> mx.array:
        masks.append("array" if isinstance(mask, mx.array) else mask)
        return fused(*args, mask=mask, **fields)

    with forced(device):
        engine = engine_of("qwen3", budget_bytes=0, prefill_chunk_tokens=64)
        monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", attend)
        together = [engine.submit(words(21, at)) for at in range(3)]
        engine.iterate([engine.submit(words(30, 9))])
        engine.finish()
        engine.iterate(together)
        engine.finish()
    assert set(masks) == {None, "causal"}
    for submit in together:
        engine.check(submit)


@pytest.mark.parametrize("device", [X86, METAL], ids=["on the host", "in the graph"])
@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.9, "min_p": 0.02}], ids=["plain", "cut"])
def test_a_seed_s_tokens_depend_on_no_neighbour_and_no_cache(device: Traits, cuts: dict[str, float]) -> None:
    """Alone in an engine of its own, without any prefix to find, and among the others behind theirs."""
    params = {"temperature": 1.0, **cuts}
    together = _tokens("qwen3", device, 5, **params)
    with forced(device):
        for at, expected in enumerate(together[:4]):  # One with each penalty, with and without the prefix.
            engine = engine_of("qwen3", budget_bytes=0)
            mine = _requests(engine, 5, **params)[at]
            engine.iterate([mine])
            engine.finish()
            assert engine.heard[mine.request_id].tokens == expected


def test_seeds_draw_other_numbers_on_the_host_than_in_the_graph() -> None:
    """Not wanted, but known: this fails when they become one, and then the documents can say so."""
    params = {"temperature": 1.0}
    assert _tokens("qwen3", X86, 5, **params) != _tokens("qwen3", METAL, 5, **params)


def test_cached_prefixes_stay_below_half_of_the_device_s_buffers() -> None:
    """Four layers have eight arrays a node: of 64 buffers the cache may hold 32, four nodes. All are
    answered, and what is evicted is computed again."""
    with forced(replace(METAL, most_buffers=64)):
        engine = engine_of("qwen3")
        prefixes = prefixes_of(engine.backend)
        for at in range(4):
            engine.ask(engine.submit(words(20, at), max_tokens=3), engine.submit(words(30, at), max_tokens=3))
            assert prefixes.statistics().nodes <= 4
        assert prefixes.statistics().evicted_tokens["budget"] > 0


def test_states_count_among_the_buffers() -> None:
    """mamba2's two layers keep two states and two counters each at a checkpoint, gpt-oss's two windows keys
    and values."""
    for family, of_segment, of_snapshot in (("qwen3", 8, 0), ("gpt_oss", 4, 4), ("mamba2", 0, 8)):
        layout = engine_of(family).backend._layout
        assert layout.arrays == (of_segment, of_snapshot), family


@pytest.mark.parametrize(
    ("device", "limit", "asked"),
    [(METAL, 1000, [700]), (METAL, 500, [500]), (CUDA, 1000, []), (X86, 1000, [])],
)
def test_only_metal_keeps_memory_wired(
    device: Traits, limit: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere MLX raises. What is allocated are the weights, once nothing is left of loading them; two
    engines on a Mac have half of the memory each."""
    calls: list[object] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append("cleared"))
    monkeypatch.setattr(mx, "get_active_memory", lambda: 700)
    monkeypatch.setattr(mx, "set_wired_limit", calls.append)
    MlxDevice(device).wire_weights(limit)
    assert calls == (["cleared", *asked] if asked else [])


def test_wiring_is_set_once_in_an_engine_s_life(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By none of the load check's batches, nor by the batch, as mlx-lm's would, nor when they are collected,
    nor when the parent changes the limit."""
    asked: list[int] = []

    def wire(most: int) -> int:
        asked.append(most)
        return 1

    monkeypatch.setattr(mx, "set_wired_limit", wire)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda *of: {"max_recommended_working_set_size": 1 << 40})
    with forced(METAL):
        backend = load(load_of(tiny_folder, memory_limit=float(2 << 30)), lambda stage: None)
        assert len(asked) == 1
        loop = EngineLoop(backend, 2, PrefillPace(64))
        loop.iterate([request(1, [1, 2, 3], 4)])
        while not loop.idle:
            loop.iterate([])
        del loop, backend
        gc.collect()
    assert len(asked) == 1


def test_nothing_is_freed_under_a_step_in_flight_on_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command buffers hold no references. Elsewhere a wait would only cost time."""
    calls: list[str] = []
    monkeypatch.setattr(mx, "synchronize", lambda: calls.append("waited"))
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append("freed"))
    MlxDevice(METAL).clear_pool()
    MlxDevice(METAL).free_buffers()
    assert calls == ["waited", "freed"] * 2
    calls.clear()
    MlxDevice(CUDA).free_buffers()
    assert calls == ["freed"]


def test_buffers_are_freed_and_wired_in_one_place() -> None:
    """So that the tests above hold for all of it."""
    users = [
        str(path.relative_to(ROOT))
        for path in modules("scheduler")
        if re.search(r"mx\.(clear_cache|set_wired_limit)\b", path.read_text())
    ]
    assert users == ["scheduler/engine/mlx/device.py"]


@pytest.mark.parametrize(("device", "allowed"), [(METAL, 300 << 20), (X86, 64 << 20)])
def test_scores_are_bounded_by_the_memory_limit_and_the_device(device: Traits, allowed: int) -> None:
    """x86 computes in pieces close to the sizes of its caches, however much memory there is."""
    own = MlxDevice(device)
    own.limit_scores(300 << 20)
    assert own.score_bytes == allowed


def test_the_name_is_the_device_s_own() -> None:
    """For operators and the kept verdicts; a CPU has none that matters."""
    assert MlxDevice(X86).name == "cpu"
    assert MlxDevice(CUDA).name != "cpu"


def test_forcing_ends_with_the_block() -> None:
    """Also where it raises."""
    before, seen = device().traits, []

    def refuse() -> None:
        with forced(replace(before, kind="metal")):
            seen.append(device().traits.kind)
            raise RequestRefused

    with pytest.raises(RequestRefused):
        refuse()
    assert seen == ["metal"]
    assert device().traits is before
