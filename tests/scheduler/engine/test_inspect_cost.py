"""The cost of an Inspect for the engine's turn: counted in walks of the prefix tree, not in time."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.radix_tree import RadixTree
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.shared.messages import Inspect, Inspection, ScriptedPlan, StepOutput
from tests.contracts.journal import request

LONG_IDLE_SECONDS = 3600.0


class Watched:
    """An engine loop with a clock of its own, whose tree walks and integrity checks are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.walks = 0
        self.checks = 0
        backend = ScriptedBackend(
            ScriptedPlan(), sleep=lambda seconds: None, clock=lambda: self.now, kv_cache_bytes=-1
        )
        self.loop = EngineLoop(backend, 4, PrefillPace(512), clock=lambda: self.now)
        walk, check = RadixTree.walk, PrefixCache.check_integrity

        def counted_walk(*arguments: Any) -> Any:
            self.walks += 1
            return walk(*arguments)

        def counted_check(cache: PrefixCache[Any, Any]) -> list[str]:
            self.checks += 1
            check(cache)
            return ["a damage"]

        monkeypatch.setattr(RadixTree, "walk", counted_walk)
        monkeypatch.setattr(PrefixCache, "check_integrity", counted_check)

    def fill(self, requests: int) -> None:
        self.loop.iterate([request(number, [number, *range(100, 120)]) for number in range(1, requests + 1)])
        while not self.loop.idle:
            self.loop.iterate([])

    def inspect(self, top: int) -> Inspection:
        (answer,) = (
            frame for frame in self.loop.iterate([Inspect(1, top=top)]) if isinstance(frame, Inspection)
        )
        return answer


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched(monkeypatch)
    watched.fill(20)
    watched.walks = watched.checks = 0
    return watched


@pytest.mark.parametrize(("top", "walks"), [(0, 0), (10, 1)])
def test_an_inspect_walks_for_shared_prefixes_alone(watched: Watched, top: int, walks: int) -> None:
    answer = watched.inspect(top)
    assert (watched.walks, watched.checks) == (walks, 0)
    assert answer.cache is not None
    assert answer.cache.nodes >= 20
    assert answer.cache.tokens > 20
    assert bool(answer.cache.shared_prefixes) is False or top > 0


def test_integrity_is_checked_when_the_engine_is_idle_and_told_by_every_inspect(watched: Watched) -> None:
    assert watched.inspect(0).cache.complaints == []  # type: ignore[union-attr]
    watched.now += LONG_IDLE_SECONDS
    running = watched.loop.iterate([request(99, [7, 8, 9])])
    assert any(isinstance(frame, StepOutput) for frame in running)
    watched.inspect(0)
    assert watched.checks == 0, "a request runs"
    while not watched.loop.idle:
        watched.loop.iterate([])
    watched.loop.iterate([])
    assert watched.checks == 1
    assert watched.inspect(0).cache.complaints == ["a damage"]  # type: ignore[union-attr]
    assert watched.checks == 1
