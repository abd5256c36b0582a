"""Names of prefixes: equal for equal prefixes, and for no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain, Place, parse
from tests.scheduler.engine.disk.disk_contents import MODEL, spelt

letters = st.text("ab", max_size=4)
names = st.tuples(st.sampled_from([MODEL, "0" * 64]), st.sampled_from(["", "a", "tenant"]), letters)


@given(names, names, st.integers(0, 4))
def test_two_chains_share_a_key_exactly_when_model_salt_and_all_tokens_before_are_the_same(
    left: tuple[str, str, str], right: tuple[str, str, str], blocks: int
) -> None:
    blocks = min(blocks, len(left[2]), len(right[2]))
    same = left[:2] == right[:2] and left[2][:blocks] == right[2][:blocks]
    keys = [Chain(model, salt, spelt(text)).key(blocks) for model, salt, text in (left, right)]
    assert (keys[0] == keys[1]) == same


@given(letters, letters, st.integers(1, 1100), st.integers(1, 1100))
def test_two_snapshots_share_a_key_exactly_when_all_tokens_before_are_the_same(
    left: str, right: str, first: int, second: int
) -> None:
    tokens = [spelt(left, 300), spelt(right, 300)]
    ends = [min(end, len(run)) for run, end in zip(tokens, (first, second), strict=True)]
    places = [Chain(MODEL, "", run).snapshot(end) for run, end in zip(tokens, ends, strict=True)]
    assert (places[0].key == places[1].key) == (tokens[0][: ends[0]] == tokens[1][: ends[1]])


def test_a_salt_may_be_any_string() -> None:
    assert Chain(MODEL, "\ud800", []).key(0) != Chain(MODEL, "", []).key(0)


@given(letters, st.integers(1, 1500))
def test_a_files_name_says_its_place(text: str, position: int) -> None:
    chain = Chain(MODEL, "salt", spelt(text, 1792))
    places = [chain.snapshot(position), chain.block(BLOCK_TOKENS * (1 + position // BLOCK_TOKENS))]
    assert [parse(place.file_name) for place in places] == places


@pytest.mark.parametrize(
    ("kind", "position", "tokens_before"),
    [("b", 256, 0), ("b", 768, 512), ("s", 255, 0), ("s", 256, 256), ("s", 700, 512)],
)
def test_a_place_stands_on_the_blocks_before_it(kind: str, position: int, tokens_before: int) -> None:
    place = parse(f"{'0' * 40}-{'1' * 40}-{kind}{position}.kv1.safetensors")
    assert isinstance(place, Place)
    assert place.tokens_before == tokens_before


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("model.safetensors", "stranger"),
        (f"{'0' * 40}-{'1' * 40}-b255.kv1.safetensors", "stranger"),
        (f"{'0' * 40}-{'1' * 40}-b256.kv1.safetensors~", "stranger"),
        (f"{'0' * 40}-{'1' * 40}-x256.kv1.safetensors", "stranger"),
        (f"{'0' * 40}-{'1' * 40}-b256.kv2.safetensors", "other format"),
        (f"{'0' * 40}-{'1' * 40}-l256.kv1.safetensors", "other format"),
    ],
)
def test_a_name_that_is_not_ours_is_distinguished_from_another_versions(name: str, what: str) -> None:
    assert parse(name) == what
