"""SIGKILL while the disk tier writes: the remaining files are whole, bounded and correct."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from scheduler.engine.disk.block_chain import Place, parse
from scheduler.engine.disk.disk_folder import DiskFolder
from scheduler.engine.disk.disk_store import DiskStore
from tests.scheduler.engine.disk.disk_contents import MODEL, SOON, content_of, files_in, weight_of

ROOT = Path(__file__).parents[4]
ROWS = 600
"""Files of 20 kB."""
BUDGET = 400_000

_WRITER = f"""
import os, random, signal, sys
from pathlib import Path
from scheduler.engine.disk.disk_tier import DiskTier
from tests.scheduler.engine.disk.disk_contents import MODEL, SOON, put_all, put_snapshot, spelt

folder, seed, deadly, calls = sys.argv[1:]
tier = DiskTier(Path(folder), MODEL, {BUDGET})

def die_at_last(*arguments, **options):
    global calls
    calls = int(calls) - 1
    if calls < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **options)

if deadly != "none":
    real = getattr(os, deadly)
    setattr(os, deadly, die_at_last)
dice = random.Random(int(seed))
if deadly != "none":
    print("writing", flush=True)
while True:
    chain = tier.chain(spelt(dice.choices("abc", k=dice.randint(1, 6)), 9), dice.choice(["", "tenant"]))
    put_all(tier, chain, {ROWS})
    put_snapshot(tier, chain, chain.tokens)
    tier.start_read(chain, 0, tier.match(chain, chain.tokens)).result(SOON)
    assert tier.flush(SOON)
    if deadly == "none":
        deadly = "kill"
        print("writing", flush=True)
"""


def start_writer(folder: Path, seed: int, deadly: str = "none", calls: int = 0) -> subprocess.Popen[bytes]:
    """A process that writes for ever, and has written, or until its call number `calls` of os.`deadly`."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(folder), str(seed), deadly, str(calls)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"writing\n"
    writer.stdout.close()
    return writer


def check_folder(path: Path) -> int:
    """Open it as the next service would; how many files were read, each as it was meant."""
    assert weight_of(files_in(path).values()) <= BUDGET, "unbounded, if only until the next start"
    folder = DiskFolder(path)
    try:
        store = DiskStore(folder, MODEL, BUDGET)
        names = files_in(path)
        places = [place for place in map(parse, names) if isinstance(place, Place)]
        assert len(places) == len(names) == store.statistics().files, "something else was left"
        for place in places:
            assert store.load(place) == content_of(place, 1 if place.kind == "s" else ROWS)
        assert sum(store.statistics().errors.values()) == 0
        return len(places)
    finally:
        folder.release()


@pytest.mark.parametrize("kills", [15, pytest.param(50, marks=pytest.mark.long)])
def test_kills_at_random_moments_leave_a_folder_that_is_right(tmp_path: Path, kills: int) -> None:
    """One folder through all of them, so that what a kill leaves is there for the next."""
    dice = random.Random(4)
    found: list[int] = []
    for seed in range(kills):
        writer = start_writer(tmp_path, seed)
        with suppress(subprocess.TimeoutExpired):
            writer.wait(dice.uniform(0, 0.05))
        writer.kill()
        assert writer.wait(SOON) == -signal.SIGKILL, "it ended before it was killed"
        found.append(check_folder(tmp_path))
    assert max(found) > 10


@pytest.mark.parametrize(
    ("deadly", "calls"),
    [
        ("open", [0, 2]),
        ("write", [0, 1, 2, 3, 40]),
        ("fsync", [0, 5]),
        ("replace", [0, 1, 30]),
        ("unlink", [0, 3]),
    ],
)
def test_a_kill_before_any_call_to_the_file_system_leaves_a_folder_that_is_right(
    tmp_path: Path, deadly: str, calls: Sequence[int]
) -> None:
    partial = 0
    for number in calls:
        writer = start_writer(tmp_path, number, deadly, number)
        assert writer.wait(SOON) == -signal.SIGKILL
        partial += sum(name.startswith(".") for name in files_in(tmp_path))
        check_folder(tmp_path)
    assert partial or deadly in ("open", "unlink"), "no kill came in the middle of a file"
