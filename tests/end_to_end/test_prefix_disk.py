"""Prefixes on disk survive the engine's death, the service's restart and a copy to another machine, and never
change an answer."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.end_to_end.raw_client import answers
from tests.end_to_end.serving import Served, at_start, eventually, serving
from tests.fakes.faulty_backend import holding_in_engine_process

_BOUND = 16 << 20
_BLOCK_TOKENS = 256
_TOPICS = [f"Topic {n}: " + "the river falls and the mill wheel turns. " * 90 for n in range(2)]
_SHARED = "You are one of several agents who look after the mill by the river. " * 90
_AGENTS = 8
_OWN_TOKENS = 32
"""The bound on each agent's tokens behind the shared ones, and the template's."""
_LOOK_SECONDS = 5.0
"""A running server searches its folder so often at most, on a miss."""


def ask(served: Served, topic: str) -> tuple[str, int, int]:
    """Return the greedy answer, the prompt's tokens and how many of them were cached."""
    messages = [{"role": "user", "content": topic}]
    status, body = served.post(messages=messages, temperature=0, max_tokens=12, timeout_seconds=120)
    assert status == 200, body
    usage = body["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return body["choices"][0]["message"]["content"], usage["prompt_tokens"], cached


def texts(served: Served) -> list[str]:
    return [ask(served, topic)[0] for topic in _TOPICS]


def is_saved(served: Served) -> bool:
    disk = served.get("/v1/cache")[1]["disk"]
    return bool(disk["files"]) and disk["pending_bytes"] == 0


@pytest.mark.timeout(240)
def test_the_next_engine_and_the_next_server_are_warm_and_right(tmp_path: Path) -> None:
    """The engine is killed as it writes, and again in the middle of eight agents behind one prefix: all are
    resumed, and recompute only their own prompts, their answers so far and less than a block of the prefix.
    The folder stays bounded."""
    folder, hold, held = tmp_path / "kv", tmp_path / "hold", tmp_path / "held"
    options = ("--kv-disk", str(folder), "--kv-disk-bytes", str(_BOUND), "--max-slots", str(_AGENTS))
    environment = at_start(tmp_path, holding_in_engine_process(_AGENTS, _AGENTS * 20, tmp_path))
    with serving(*options, environment=environment) as served:
        expected = texts(served)
        ask(served, "Something else: " + _TOPICS[0])
        os.kill(served.engine_pid(), signal.SIGKILL)
        eventually(lambda: served.metric("penstock_engine_restarts_total") == 1)
        eventually(lambda: served.get("/ready")[0] == 200)
        assert texts(served) == expected

        _, shared_tokens, _ = ask(served, _SHARED)
        eventually(lambda: is_saved(served))
        said = served.metric("penstock_generated_tokens_total")
        hits = served.metric("penstock_prefix_disk_hit_tokens_total")
        found: list[float] = []
        hold.touch()

        def kill() -> None:
            eventually(held.exists)
            os.kill(served.engine_pid(), signal.SIGKILL)
            hold.unlink()
            eventually(lambda: served.get("/ready")[0] == 503)
            found.append(served.metric("penstock_generated_tokens_total") - said)
            found.append(served.metric("penstock_prefilled_tokens_total"))

        asked = [(f"{_SHARED}\nAgent {number}.", {"max_tokens": 150}) for number in range(_AGENTS)]
        ended = [(answer.errors, answer.finish_reason) for answer in answers(served.port, asked, kill)]
        assert ended == [([], "length")] * _AGENTS
        assert served.metric("penstock_resumed_requests_total") == _AGENTS
        said_before, computed_before = found
        again = served.metric("penstock_prefilled_tokens_total") - computed_before
        saved = shared_tokens // _BLOCK_TOKENS * _BLOCK_TOKENS
        assert saved >= 4 * _BLOCK_TOKENS
        assert served.metric("penstock_prefix_disk_hit_tokens_total") - hits >= saved
        assert again <= (shared_tokens - saved) + _AGENTS * _OWN_TOKENS + said_before
    with serving(*options) as served:
        assert texts(served) == expected
        assert served.metric("penstock_prefix_disk_hit_tokens_total") >= _BLOCK_TOKENS * len(_TOPICS)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= _BOUND
    assert not [path for path in files if ".tmp" in path.name]


def _copy(source: Path, target: Path) -> None:
    """As `rsync -a --ignore-existing --exclude penstock-kv.lock` does."""
    for file in sorted(source.glob("*.safetensors")):
        there = target / file.name
        if not there.exists():
            partial = there.with_name(f".{there.name}.Xy12")
            shutil.copyfile(file, partial)
            os.utime(partial, (0, 0))
            partial.rename(there)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_copied_folder_is_a_warm_cache_while_both_servers_run(tmp_path: Path) -> None:
    """The second server hits at least 0.95 of what the first one had on disk, with the same answers."""
    first, second = tmp_path / "first", tmp_path / "second"
    with serving("--kv-disk", str(first)) as a, serving("--kv-disk", str(second)) as b:
        expected = texts(a)
        eventually(lambda: is_saved(a))
        saved = [ask(a, topic)[1] // _BLOCK_TOKENS * _BLOCK_TOKENS for topic in _TOPICS]
        assert min(saved) >= 4 * _BLOCK_TOKENS
        assert ask(b, "something else, to find out that there is nothing " * 60)[2] == 0
        _copy(first, second)
        time.sleep(_LOOK_SECONDS)
        found = [ask(b, topic) for topic in _TOPICS]
        assert [text for text, _, _ in found] == expected
        assert sum(cached for _, _, cached in found) >= 0.95 * sum(saved)
