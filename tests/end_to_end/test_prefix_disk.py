"""Prefixes on disk survive the engine's death and the service's restart, and never change an answer."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests.end_to_end.serving import Served, eventually, serving

_BOUND = 16 << 20
_TOPICS = [f"Topic {n}: " + "the river falls and the mill wheel turns. " * 60 for n in range(3)]


def _answers(served: Served) -> list[str]:
    """Return the greedy answer to each topic, and its cached tokens."""
    answers = []
    for topic in _TOPICS:
        status, body = served.post(
            messages=[{"role": "user", "content": topic}], temperature=0, max_tokens=12
        )
        assert status == 200
        answers.append(body["choices"][0]["message"]["content"])
    return answers


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long)])
def test_killed_while_it_writes_the_engine_comes_back_warm_and_right(tmp_path: Path, kills: int) -> None:
    """The engine is killed at a random moment after a burst of work. Answers stay the same, only
    the killed streams have errors, the folder stays bounded; and so after a restart."""
    generator = random.Random(7)
    options = ("--kv-disk", str(tmp_path), "--kv-disk-bytes", str(_BOUND))
    with serving(*options) as served:
        expected = _answers(served)
        for kill in range(kills):
            served.post(
                messages=[{"role": "user", "content": f"{kill} " + _TOPICS[0]}], temperature=0, max_tokens=4
            )
            eventually(lambda: generator.random() < 0.2)
            os.kill(served.engine_pid(), signal.SIGKILL)
            eventually(lambda: served.get("/ready")[0] == 503)
            eventually(lambda: served.get("/ready")[0] == 200, 60)
            assert _answers(served) == expected
        eventually(lambda: served.get("/v1/cache")[1]["disk"]["pending_bytes"] == 0)
        assert served.metric("penstock_prefix_disk_hit_tokens_total") > 0
    with serving(*options) as served:
        assert _answers(served) == expected
        assert served.metric("penstock_prefix_disk_hit_tokens_total") >= 256 * len(_TOPICS)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= _BOUND
    assert not [path for path in files if ".tmp" in path.name]
