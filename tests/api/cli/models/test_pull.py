"""`penstock pull` as a process: what it prints, what it leaves, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.models.disk_models import find
from api.cli.models.hub import HubFile
from api.download_progress import ProgressLines
from tests.fakes.fake_hub import FakeHub, running
from tests.fakes.model_files import model_files, weights

WEIGHTS = "model.safetensors"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running(FakeHub(model_files() | {WEIGHTS: weights(2_000_000)}, token="hf_right")) as started:
        yield started


def environment(hub: FakeHub, home: Path) -> dict[str, str]:
    """Nothing of this user's, and the token."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": "hf_right",
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": str(Path(__file__).parents[4]),
    }


def started(hub: FakeHub, home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "api", "pull", *arguments],
        env=environment(hub, home),
        cwd=home,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Of a run in the background of a shell, children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_a_pull_says_what_it_did_and_one_that_is_stopped_goes_on(hub: FakeHub, tmp_path: Path) -> None:
    """Ctrl-C is 130 without a traceback; what came is kept, and said on the next call."""
    hub.stalled_after[WEIGHTS] = 1_500_000
    first = started(hub, tmp_path, "owner/small")
    assert hub.stalls.wait(60)
    while not any(half.stat().st_size for half in tmp_path.rglob(f"{hub.etag(WEIGHTS)}.incomplete")):
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGINT)
    stdout, stderr = first.communicate(timeout=60)
    assert (first.returncode, stdout) == (130, "")
    assert stderr.splitlines()[-1].startswith("stopped; what came is kept")
    assert "Traceback" not in stderr

    hub.stalled_after.clear()
    second = started(hub, tmp_path, "owner/small")
    stdout, stderr = second.communicate(timeout=60)
    assert (second.returncode, f"{WEIGHTS}: goes on at " in stderr) == (0, True)
    assert hub.asked[-1][2].startswith("bytes=")
    assert f"{WEIGHTS}: 4.0 MB, checksum right" in stderr
    assert "files checked: 1 by SHA-256, 4 were here already" in stdout
    assert "penstock serve --model owner/small" in stdout
    assert [path.name for path in tmp_path.iterdir()] == [".cache"]
    cache = tmp_path / ".cache/huggingface/hub"
    listed = find(cache=cache, dialects=False)
    assert [model.name for model in listed if model.is_model and model.source == "hub"] == ["owner/small"]


def test_what_cannot_be_pulled_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    """Exit 1, nothing left behind."""
    process = started(hub, tmp_path, "owner/none")
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (1, "")
    assert stderr.startswith("penstock: the hub has no model 'owner/none'")
    assert not list(tmp_path.iterdir())


def test_lines_have_a_rate_where_nobody_watches_a_bar() -> None:
    """One every ten seconds, of what came since the last; what was there already is no rate."""
    said, now = list[str](), [0.0]
    lines = ProgressLines(10_000_000_000, said.append, lambda: now[0])
    file = HubFile(WEIGHTS, 10_000_000_000, "a" * 64)
    lines.begin(file, 2_000_000_000)
    for second in range(1, 21):
        now[0] = float(second)
        lines.advance(file, 100_000_000)
    lines.done(file)
    assert said == [
        f"{WEIGHTS}: goes on at 2.0 GB of 10 GB",
        "3.0 GB of 10 GB, 100 MB/s",
        "4.0 GB of 10 GB, 100 MB/s",
        f"{WEIGHTS}: 10 GB, checksum right",
    ]
