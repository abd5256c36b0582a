"""What `docs/capacity.md` says of fifty agents is what the engine's arithmetic makes of them."""

from __future__ import annotations

import re

import pytest

from scheduler.engine.budget.limits import memory_limit
from scheduler.shared.row_bytes import RowBytes
from tests.repo.tree import ROOT

PAGE = (ROOT / "docs" / "capacity.md").read_text()
AGENTS, TOKENS, SHARED_TOKENS = 50, 20_000, 12_000
HEAD_DIMENSION, HALF_BYTES, Q8 = 128, 2, 0.53
WORKING_SET = 0.75
"""Metal's recommendation, as a part of a large Mac's memory."""
MACS_GIBIBYTES = (64, 96, 128, 192, 256, 512)
LAYERS_AND_HEADS = {"Qwen3-8B": (36, 8), "Qwen3-30B-A3B": (48, 4)}
WEIGHTS_BYTES = {"Qwen3-8B": 4_600_000_000, "Qwen3-30B-A3B": 17_000_000_000}
ROWS = re.findall(r"^\| (Qwen3-\S+), (.+?) \| (\d+) GB \| (\d+) GB \|$", PAGE, re.M)


def token_bytes(model: str) -> int:
    layers, heads = LAYERS_AND_HEADS[model]
    return 2 * layers * heads * HEAD_DIMENSION * HALF_BYTES


def needed_bytes(model: str, how: str) -> int:
    """Return the bytes of all agents' rows, a shared prefix once."""
    shared_tokens = SHARED_TOKENS if "12,000" in how or "both" in how else 0
    part = Q8 if "q8" in how or "both" in how else 1.0
    row = RowBytes(int(token_bytes(model) * part))
    return AGENTS * row.held(TOKENS, shared_tokens) + row.held(shared_tokens)


@pytest.mark.parametrize(("model", "how", "cache_gigabytes", "mac_gibibytes"), ROWS)
def test_a_row_is_the_engines_arithmetic(
    model: str, how: str, cache_gigabytes: str, mac_gibibytes: str
) -> None:
    needed = needed_bytes(model, how)
    assert round(needed / 1e9) == int(cache_gigabytes)
    smallest = next(size for size in MACS_GIBIBYTES if kv_bytes(model, size) >= needed)
    assert smallest == int(mac_gibibytes)


def kv_bytes(model: str, gibibytes: int) -> int:
    machine = gibibytes << 30
    device = {"max_recommended_working_set_size": int(machine * WORKING_SET)}
    limit = memory_limit(0, device, machine, WEIGHTS_BYTES[model], None, 1.0)
    return limit.kv_budget_bytes(limit.first_peak_bytes)


def test_the_farms_mac_is_a_row_and_agents_are_whole_ones() -> None:
    """What is left over where some fit is no agent."""
    assert len(ROWS) == 5
    assert all(f"{token_bytes(model):,}" in PAGE for model in LAYERS_AND_HEADS)
    farm = (ROOT / "docs" / "farm-on-a-mac-studio.md").read_text()
    [mac, model, cache] = re.findall(r"A Mac of (\d+) GB with (Qwen3\S+) .*?: (\d+) GB of keys", farm, re.S)[
        0
    ]
    assert (model, "both", cache, mac) in ROWS
    fit, row = kv_bytes("Qwen3-8B", 64), TOKENS * token_bytes("Qwen3-8B")
    assert f"64 GB has {fit / 1e9:.0f} GB for them beside Qwen3-8B, which are {fit // row} agents" in PAGE
    assert f"\n{int(fit / row / Q8)} with q8" in PAGE
