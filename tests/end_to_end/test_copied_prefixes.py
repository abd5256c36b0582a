"""A folder of `--kv-disk` that is copied to another machine while both servers run is a warm cache there."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.end_to_end.serving import Served, eventually, serving
from tests.repo.tree import ROOT

_BLOCK_TOKENS = 256
_LOOK_SECONDS = 0.5
"""A running server searches its folder so often at most, on a miss; 5 s where no test waits for it."""
_ON_START = f"""
import sys
if "scheduler.engine" in sys.orig_argv:
    from scheduler.engine.disk import disk_tier
    disk_tier._LOOK_SECONDS = {_LOOK_SECONDS}
"""
_TOPICS = [f"Topic {n}: " + "the river falls and the mill wheel turns. " * 90 for n in range(2)]


def _ask(served: Served, topic: str) -> tuple[str, int, int]:
    """Return the greedy answer, the prompt's tokens and how many of them were cached."""
    status, body = served.post(
        messages=[{"role": "user", "content": topic}], temperature=0, max_tokens=12, timeout_seconds=120
    )
    assert status == 200, body
    usage = body["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return body["choices"][0]["message"]["content"], usage["prompt_tokens"], cached


def _files(served: Served) -> int:
    """Return the number of files once none is being written; 0 before."""
    disk = served.get("/v1/cache")[1]["disk"]
    return int(disk["files"]) if disk["pending_bytes"] == 0 else 0


def _copy(source: Path, target: Path) -> None:
    """As `rsync -a --ignore-existing --exclude penstock-kv.lock` does."""
    for file in sorted(source.glob("*.safetensors")):
        there = target / file.name
        if not there.exists():
            partial = there.with_name(f".{there.name}.Xy12")
            shutil.copyfile(file, partial)
            os.utime(partial, (0, 0))
            partial.rename(there)


@pytest.mark.timeout(300)
def test_a_copied_folder_is_a_warm_cache_while_both_servers_run(tmp_path: Path) -> None:
    """The second server hits at least 0.95 of what the first one had on disk, with the same answers."""
    first, second = tmp_path / "first", tmp_path / "second"
    (tmp_path / "sitecustomize.py").write_text(_ON_START)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with (
        serving("--kv-disk", str(first)) as a,
        serving("--kv-disk", str(second), environment={"PYTHONPATH": path}) as b,
    ):
        expected = [_ask(a, topic)[0] for topic in _TOPICS]
        eventually(lambda: _files(a) > 0, 60)
        saved = [_ask(a, topic)[1] // _BLOCK_TOKENS * _BLOCK_TOKENS for topic in _TOPICS]
        assert min(saved) >= 4 * _BLOCK_TOKENS
        assert _ask(b, "something else, to find out that there is nothing " * 60)[2] == 0
        _copy(first, second)
        time.sleep(_LOOK_SECONDS)
        answers = [_ask(b, topic) for topic in _TOPICS]
        assert [answer for answer, _, _ in answers] == expected
        assert sum(cached for _, _, cached in answers) >= 0.95 * sum(saved)
