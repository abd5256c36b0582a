"""`penstock bench dev cache-soak`: a short run of it, and its verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from loadtests.cache_soak import run as bench
from loadtests.cache_soak.run import CACHES, CacheSoak, CacheSoakPlan
from loadtests.cache_soak.visits import Guests
from tests.loadtests.cache_soak.test_plateau import samples

_GUESTS = Guests(tokens=2000, computed_tokens=2000, schemas=False)
_PLAN = CacheSoakPlan(seconds=2.0, clients=2, engine="scripted", guests=_GUESTS)


def test_sessions_come_and_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server: every cache has something soon, and no answer fails."""
    monkeypatch.setattr(bench, "_SAMPLE_SECONDS", 0.4)
    soak = trio.run(bench.run, _PLAN, lambda text: None)
    assert soak.samples[-1]["sessions"] > 16
    assert soak.samples[-1]["responses"] > 0
    for name in (*CACHES, "server: resident bytes", "engine: resident bytes"):
        assert soak.samples[-1][name] > 0
    assert "nothing can be judged" in next(soak.complaints())


@pytest.mark.parametrize(("leak", "code"), [(0.0, 0), (2e6, 1)])
def test_growth_fails_it(leak: float, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once caches are full, with every level in the report."""

    async def run(plan: CacheSoakPlan, note: object) -> CacheSoak:
        full = {"responses": 1e9, "schemas": 1e9, "prefixes": 1.0, "token ids": 1.0}
        found = [
            {**full, **one, "sessions": 1e9, "seconds": float(at)}
            for at, one in enumerate(samples(60, 15, resident=leak))
        ]
        return CacheSoak(plan, found[15:])

    monkeypatch.setattr(bench, "run", run)
    result = CliRunner().invoke(bench.cache_soak, ["--out", str(tmp_path), "--engine", "mlx"])
    assert result.exit_code == code
    assert "server: resident bytes: 264,000,000" in result.output or leak
    assert ("COMPLAINT: server: resident bytes grew" in result.output) == bool(leak)
    assert (tmp_path / "cache-soak-mlx.json").is_file()


def test_what_an_engine_computes_is_less_and_may_have_a_schema() -> None:
    """Where it computes nothing, all that is remembered of sessions has to be exceeded."""
    assert set(_PLAN.least) == {"sessions", "responses"}
    computed = CacheSoakPlan(2.0, 2, "mlx", Guests(2000, 100, schemas=True))
    assert computed.least["sessions"] < _PLAN.least["sessions"]
    assert "schemas" in computed.least
    assert "scripted" in _PLAN.arguments
    assert "scripted" not in computed.arguments
