"""`penstock pull` from a hub on the loopback: whole, cut, damaged, refused, and onto a disk that is full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from api.cli.errors import OperatorError
from api.cli.models import pull
from api.cli.models.disk_models import find
from scheduler.errors import StartupError
from scheduler.prompt import model_folder
from tests.fakes.fake_hub import FakeHub, running
from tests.fakes.model_files import model_files, weights

WEIGHTS = "model.safetensors"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = model_files() | {WEIGHTS: weights(2_000_000), "model.bin": b"no", "README.md": b"terms"}
    with running(FakeHub(files, token="hf_right")) as started:
        yield started


def started(hub: FakeHub, home: Path, *arguments: str, token: str = "hf_right") -> subprocess.Popen[str]:
    kept = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
    own = {"HOME": str(home), "HF_ENDPOINT": hub.url, "HF_TOKEN": token, "NO_PROXY": "127.0.0.1"}
    return subprocess.Popen(
        [sys.executable, "-m", "api", "pull", *(arguments or ("owner/small",))],
        env={**kept, **own, "PYTHONPATH": str(Path(__file__).parents[4])},
        cwd=home,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Of a run in the background of a shell, children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def pulled(hub: FakeHub, home: Path, *arguments: str, token: str = "hf_right") -> tuple[int, str, str]:
    process = started(hub, home, *arguments, token=token)
    stdout, stderr = process.communicate(timeout=100)
    return process.returncode, stdout, stderr


def listed(home: Path) -> list[str]:
    found = find(home / ".cache/huggingface/hub")
    return [model.name for model in found if not model.reason and "/" in model.name]


def test_a_connection_that_is_cut_costs_nothing_but_time(hub: FakeHub, tmp_path: Path) -> None:
    """Every file is there, as the hub has it; what a model is not served from stays there."""
    hub.cut_after[WEIGHTS] = 1_500_000
    code, stdout, stderr = pulled(hub, tmp_path)
    assert (code, "serve --model owner/small" in stdout) == (0, True), stderr
    assert listed(tmp_path) == ["owner/small"]
    (folder,) = tmp_path.rglob("snapshots/*")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: content for name, content in hub.files.items() if name != "model.bin"
    }


def test_one_that_is_stopped_ends_at_once_and_goes_on(hub: FakeHub, tmp_path: Path) -> None:
    """Ctrl-C is 130 without a traceback, although the hub's library would wait for its threads."""
    hub.stalled_after[WEIGHTS] = 1_500_000
    first = started(hub, tmp_path)
    assert hub.stalls.wait(60)
    first.send_signal(signal.SIGINT)
    stdout, stderr = first.communicate(timeout=20)
    assert (first.returncode, stdout, "Traceback" in stderr) == (130, "", False)
    assert stderr.splitlines()[-1].startswith("stopped; what came is kept")
    hub.stalled_after.clear()
    assert pulled(hub, tmp_path)[0] == 0
    assert listed(tmp_path) == ["owner/small"]


@pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
def test_a_damaged_file_is_refused_and_deleted(file: str, hub: FakeHub, tmp_path: Path) -> None:
    """By SHA-256, or git's checksum of small files, which the hub's library takes as they come. The next pull
    has it right."""
    hub.damaged[file] = 1
    code, _, stderr = pulled(hub, tmp_path)
    assert (code, f"{file} is damaged" in stderr) == (1, True), stderr
    assert pulled(hub, tmp_path)[0] == 0
    assert all(path.read_bytes() == hub.files[file] for path in tmp_path.rglob(file))


def test_what_cannot_be_pulled_is_one_line(hub: FakeHub, tmp_path: Path) -> None:
    for arguments, token, words in (
        (("owner/none",), "hf_right", "the hub has no model 'owner/none'"),
        (("owner/small", "--revision", "v9"), "hf_right", "has no revision 'v9'"),
        (("small",), "hf_right", "is no hub id"),
        (("owner/small",), "hf_wrong", "is gated: accept its terms"),
    ):
        code, stdout, stderr = pulled(hub, tmp_path, *arguments, token=token)
        assert (code, stdout) == (1, "")
        assert words in stderr
        assert "Traceback" not in stderr
    assert listed(tmp_path) == []


@pytest.fixture
def here(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In this process."""
    hub.token = ""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    return tmp_path / "hub"


def test_a_model_that_cannot_be_served_costs_no_gigabytes(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["config.json"] = b'{"model_type": "none_such"}'
    code, _, stderr = pulled(hub, tmp_path)
    assert (code, "not downloaded" in stderr, "none_such" in stderr) == (1, True, True)
    assert not any(path.endswith(WEIGHTS) for _, path, _ in hub.asked)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": b"{}", "a.gguf": b""}, r"no model\*.safetensors"),
        ({"model.safetensors": b"1"}, "holds no config.json"),
    ],
)
def test_a_repository_that_is_no_model_is_refused(
    files: dict[str, bytes], words: str, hub: FakeHub, here: Path
) -> None:
    hub.files = files
    with pytest.raises(OperatorError, match=words):
        pull.fetch("owner/small", "main")


@pytest.mark.parametrize("why", ["no network", "offline", "no such model"])
def test_serve_says_of_a_hub_what_pull_says(
    why: str, hub: FakeHub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's library wraps some of these in one that speaks of its cache alone."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", why == "offline")
    if why == "no network":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(OperatorError) as caught:
        pull.fetch("owner/none", "main")
    with pytest.raises(StartupError) as served:
        model_folder.find("owner/none")
    assert str(served.value) == f"--model: {caught.value}"
