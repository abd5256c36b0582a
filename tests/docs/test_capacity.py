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


def test_the_page_has_the_rows() -> None:
    assert len(ROWS) == 5


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


def test_the_agents_of_a_mac_are_whole_ones() -> None:
    """As many as fit: what is left over is no agent."""
    found = re.search(r"a Mac of (\d+) GB has (\d+) GB .*? are (\d+) agents .*? or\s(\d+) with q8", PAGE)
    assert found is not None
    cache, row = kv_bytes("Qwen3-8B", int(found[1])), TOKENS * token_bytes("Qwen3-8B")
    assert [round(cache / 1e9), int(cache / row), int(cache / (row * Q8))] == [
        int(one) for one in found.groups()[1:]
    ]


@pytest.mark.parametrize("model", LAYERS_AND_HEADS)
def test_the_bytes_of_a_token_are_on_the_page(model: str) -> None:
    assert f"{token_bytes(model):,}" in PAGE
