"""Prefixes that outlive the engine: reading them back from disk changes no token."""

from __future__ import annotations

import random
from pathlib import Path

import mlx.core as mx
import pytest

from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.mlx.packed import arrays_of
from scheduler.shared.messages import Cancel, Inspect, KvCacheDtype
from tests.contracts.journal import prefixes_of, prompt_of
from tests.examples import sampled
from tests.scheduler.engine.mlx.families import FAMILIES, ONE_OF_EACH_KIND, random_model
from tests.scheduler.engine.mlx.reuse import ReuseEngine, disk_of, engine_of, words
from tests.scheduler.engine.prefix.cached_prompts import at

_SHARED_PREFIX = [token % 300 for token in prompt_of(530, 5)]
_ALL = sampled(sorted(FAMILIES), ONE_OF_EACH_KIND)
SOON = 20.0


def _engine(family: str, folder: Path, budget_bytes: int = 1 << 30) -> ReuseEngine:
    tier = DiskTier(folder, f"fingerprint of {family}", budget_bytes)
    return engine_of(family, tier=tier, prefill_chunk_tokens=128)


def _written(engine: ReuseEngine) -> None:
    """Until all that was noted is on disk."""
    disk = disk_of(engine.backend)
    while not engine.loop.resting:
        engine.iterate()
    assert disk.tier.flush(SOON)


def _stopped(engine: ReuseEngine) -> None:
    _written(engine)
    assert disk_of(engine.backend).tier.close(SOON)


@pytest.mark.parametrize("family", _ALL)
def test_a_restart_finds_what_was_kept(family: str, tmp_path: Path) -> None:
    """Another engine on the same folder reads the shared prefix and the last turn, computes the rest, and
    generates the same tokens; so do its neighbours in the batch."""
    first = _engine(family, tmp_path)
    prompt = [*_SHARED_PREFIX, *words(20, 2)]
    (cold,) = first.ask(first.submit(prompt, boundaries=(530, 548)))
    _stopped(first)
    second = _engine(family, tmp_path)
    turn = [*prompt, *cold.tokens, *words(7, 3)]
    (again, branch, other) = second.ask(
        second.submit(turn, boundaries=(530,)),
        second.submit([*_SHARED_PREFIX, *words(9, 4)], boundaries=(530,)),
        second.submit(words(50, 6)),
    )
    state = family in set(FAMILIES) - {"deepseek_v3", "llama", "qwen3"}
    # Except the answer's last token, which is computed when a request continues it.
    assert again.cached >= (len(prompt) + len(cold.tokens) - 1 if state else 512)
    assert branch.cached >= (530 if state else 512)
    assert other.cached == 0
    assert disk_of(second.backend).statistics().hit_tokens >= 512
    _stopped(second)


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "mamba2"])
def test_damage_is_a_miss(family: str, tmp_path: Path) -> None:
    """Any bytes changed, cut or missing: the request is computed, right, and the fault is counted."""
    engine = _engine(family, tmp_path)
    prompt = [*_SHARED_PREFIX, *words(20, 2)]
    engine.ask(engine.submit(prompt, boundaries=(530, 548)))
    _stopped(engine)
    generator = random.Random(3)
    for path in sorted(tmp_path.rglob("*.safetensors")):
        data = bytearray(path.read_bytes())
        match generator.randrange(3):
            case 0:
                data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
            case 1:
                del data[generator.randrange(len(data)) :]
            case _:
                data = bytearray()
        path.write_bytes(data)
    second = _engine(family, tmp_path)
    (again,) = second.ask(second.submit(prompt, boundaries=(530, 548)))
    assert again.cached == 0
    assert sum(disk_of(second.backend).tier.statistics().errors.values()) >= 1
    _stopped(second)


def _segments(engine: ReuseEngine, tokens: int) -> list[mx.array]:
    """The arrays of what is cached of the shared prefix, each of all its tokens."""
    prefixes = prefixes_of(engine.backend)
    lease = prefixes.pin(prefixes.match(at(_SHARED_PREFIX[:tokens])))
    pieces = [
        [array for layer in segment.span(0, taken) for array in arrays_of(layer)]
        for segment, taken in lease.pieces
    ]
    prefixes.release(lease)
    return [mx.concatenate(list(parts), axis=2) for parts in zip(*pieces, strict=True)]


@pytest.mark.parametrize(
    ("family", "kv_cache_dtype"),
    [("qwen3", "q8"), ("qwen3", "k8v4"), ("qwen3", "q4"), ("gemma3_text", "q8")],
)
def test_packed_blocks_are_read_as_they_were_written(
    family: str, kv_cache_dtype: KvCacheDtype, tmp_path: Path
) -> None:
    """Bit for bit, and take less of the disk, also beside layers of a window, which are not packed."""
    model = random_model(family, head_dim=32)

    def engine(name: str, packing: KvCacheDtype) -> ReuseEngine:
        tier = DiskTier(tmp_path / name, name, 1 << 30)
        return ReuseEngine(model, family, tier=tier, kv_cache_dtype=packing, prefill_chunk_tokens=128)

    for name, packing in (("packed", kv_cache_dtype), ("plain", "auto")):
        first = engine(name, packing)
        first.iterate([first.submit([*_SHARED_PREFIX, *words(20, 2)], boundaries=(512,))])
        first.finish()
        _stopped(first)
        if name == "packed":
            written = _segments(first, 512)
    plain, packed = (
        sum(path.stat().st_size for path in (tmp_path / name).rglob("*.safetensors"))
        for name in ("plain", "packed")
    )
    assert packed < 0.6 * plain
    second = engine("packed", kv_cache_dtype)
    submit = second.submit([*_SHARED_PREFIX, *words(9, 4)], boundaries=(512,))
    second.iterate([submit])
    second.finish()
    assert second.heard[submit.request_id].cached >= 512
    assert all(map(mx.array_equal, _segments(second, 512), written))
    _stopped(second)


def test_another_salt_is_another_file(tmp_path: Path) -> None:
    """No prefix of one tenant is read for another."""
    first = _engine("qwen3", tmp_path)
    first.ask(first.submit(_SHARED_PREFIX, salt="ours"))
    _stopped(first)
    second = _engine("qwen3", tmp_path)
    theirs, ours = second.ask(
        second.submit(_SHARED_PREFIX, salt="theirs"), second.submit(_SHARED_PREFIX, salt="ours")
    )
    assert (theirs.cached, ours.cached) == (0, 512)
    _stopped(second)


def test_who_waits_for_the_disk_may_leave(tmp_path: Path) -> None:
    """A request that is cancelled while its prefix is read leaves nothing behind, and others are served."""
    first = _engine("qwen3", tmp_path)
    first.ask(first.submit(_SHARED_PREFIX))
    _stopped(first)
    second = _engine("qwen3", tmp_path)
    gone, stays = second.submit(_SHARED_PREFIX), second.submit([*_SHARED_PREFIX, 7])
    second.iterate([gone, stays])
    second.iterate([Cancel(gone.request_id)])
    second.finish()
    second.check(stays)
    second.iterate([Inspect(1)])
    assert second.inspections[0].disk is not None
    _stopped(second)
