"""`--engines join`: the options, and what operators see of machines that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, trio_test

from api.access.api_keys import ApiKeys
from api.admin.live import snapshot
from api.assembly import assemble
from api.cli.join import engine
from api.options.options import load
from api.options.scheduler_settings import scheduler_config
from api.remote_engines import join_token
from scheduler.errors import OptionError, StartupError
from scheduler.processes.process import EngineLauncher
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import client_of
from tests.fakes.scheduling import make_scheduler


def none_here(number: int) -> EngineLauncher:
    raise AssertionError("no engine is started here")


EMPTY = ("/health", "/v1/scheduler", "/v1/models", "/metrics", "/")
SHOWN = {"state": "listening", "port": 9100}


@pytest.mark.parametrize("given", ["0", "65", "joint", "ray", "join:", "2.5", ""])
def test_engines_are_a_number_or_elsewhere(given: str) -> None:
    with pytest.raises(OptionError, match=r"--engines .*a number from 1 to 64, or join"):
        load({"engines": given})


def test_several_models_are_refused_by_name(tmp_path: Path) -> None:
    config = scheduler_config(load({"engines": "join"}), Path("none"), ApiKeys(), Path("cache"))
    assert (config.engines, config.engines_join, config.engine.sharers) == (0, True, 1)
    settings = load({"engines": "join", "engine": "scripted", "model": "a,b"})
    with pytest.raises(OptionError, match="--engines join: there may be one model"):
        assemble(settings, ApiKeys())


@trio_test
async def test_without_a_machine_every_page_is_there(autojump_clock: MockClock) -> None:
    """`/ready` says 503 until the first engine is; the others answer, without an engine to name."""
    scheduler = make_scheduler(none_here, ScriptedPlan(), engines=0, engines_join=True, must_start=False)
    async with (
        trio.open_nursery() as nursery,
        client_of(scheduler, reports={"cluster": lambda: dict(SHOWN)}) as client,
    ):
        nursery.start_soon(scheduler.run)
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "starting")
        for page in EMPTY:
            assert (await client.get(page)).status_code == 200, page
        assert snapshot(scheduler)["engines"] == []
        body = (await client.get("/v1/scheduler")).json()
        assert body["engines"] == []
        assert body["cluster"] == SHOWN
        assert (await client.get("/v1/cache")).status_code == 503
        nursery.cancel_scope.cancel()


def test_a_token_is_made_once_and_is_for_its_user_only(tmp_path: Path) -> None:
    """In the user's cache, so that machines need no new copy after a restart."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    first, path = join_token(environment)
    assert path.stat().st_mode & 0o777 == 0o600
    assert join_token(environment) == (first, path)
    path.chmod(0o640)
    with pytest.raises(OptionError, match=f"others can read {path}.* chmod 600"):
        join_token(environment)
    command = ["--join", "127.0.0.1:9", "--token-file", str(path)]
    with pytest.raises(OptionError, match=f"--token-file: others can read {path}: chmod 600"):
        engine.main(command, standalone_mode=False)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(OptionError, match=r"join-token has no token of at least 16 characters"):
        join_token(environment)


def test_an_engine_on_each_node_of_ray_is_asked_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not made here: the command says first what Ray must do."""
    monkeypatch.setenv("PENSTOCK_JOIN_TOKEN", "0" * 64)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(StartupError, match="Ray must check tokens"):
        engine.main(["--join", "127.0.0.1:9", "--ray", "auto"], standalone_mode=False)
