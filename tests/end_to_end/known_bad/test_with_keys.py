"""Defects found on servers with keys, and those that only many requests together show."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from loadtests.processes import environment, of_process
from tests.end_to_end.known_bad.asking import Ask, Asking, Outcome
from tests.end_to_end.serving import Served, eventually, serving

_SECRET = "sk-of-alice"
_KEYS = f"alice:{_SECRET},bob:sk-of-bob,root:sk-of-root admin"
_SECONDS = 60.0
_PROMPT = "The safe's code is 7 4 1 9 and its key lies below the third stone behind the mill. " * 8


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(trained=True, environment={"PENSTOCK_API_KEY": _KEYS}) as served:
        yield served


def _ask(served: Served, path: str, key: str | None, body: dict[str, Any] | None = None) -> Any:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    reply = Asking(served.port, Ask(path, body, headers), _SECONDS).join(_SECONDS)
    assert reply.outcome is Outcome.ANSWERED, str(reply)
    return reply.body


def _cached_tokens(served: Served, key: str) -> int:
    usage = _ask(served, "/v1/completions", key, {"prompt": _PROMPT, "max_tokens": 1})["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_d11_cached_tokens_say_nothing_of_other_tenants(served: Served) -> None:
    """A tenant could try another's prompt token by token: `cached_tokens` showed which were right."""
    _cached_tokens(served, _SECRET)
    assert _cached_tokens(served, _SECRET) > 100
    assert _cached_tokens(served, "sk-of-bob") == 0


def test_d14_stop_tokens_of_past_requests_are_forgotten(served: Served) -> None:
    """The engine kept 88 KB of every list of `stop_token_ids` that it had ever seen: 62 MB of these."""
    chance = random.Random(14)

    def send(count: int) -> None:
        headers = {"authorization": f"Bearer {_SECRET}"}
        for _ in range(count // 20):
            bodies = [
                {"prompt": "x", "max_tokens": 1, "stop_token_ids": chance.sample(range(2048), 256)}
                for _ in range(20)
            ]
            asked = [Asking(served.port, Ask("/v1/completions", body, headers), _SECONDS) for body in bodies]
            assert {asking.join(_SECONDS).outcome for asking in asked} == {Outcome.ANSWERED}

    send(300)
    before = of_process(served.engine_pid())["resident bytes"]
    send(700)
    assert of_process(served.engine_pid())["resident bytes"] - before < 40e6


def test_the_engine_has_no_keys(served: Served) -> None:
    """It does not need them, and a model's code runs there."""
    assert "PATH=" in environment(served.engine_pid())
    assert _SECRET not in environment(served.engine_pid())


def test_readiness_tells_strangers_nothing_of_a_death(served: Served) -> None:
    """The engine's cause of death may quote prompts."""
    os.kill(served.engine_pid(), signal.SIGKILL)
    eventually(lambda: served.metric("penstock_engine_deaths_total") == 1)
    eventually(lambda: served.get("/ready")[0] == 200)
    assert "SIGKILL" not in str(_ask(served, "/ready", None))
    assert "SIGKILL" in str(_ask(served, "/v1/scheduler", "sk-of-root"))
