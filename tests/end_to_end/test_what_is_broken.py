"""Broken folders and disks: each ends the start with one clear line, or the server runs without it. Broken
models are in `test_start_errors.py`."""

from __future__ import annotations

import json
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from scheduler.models.random_qwen3 import TINY, ensure_model
from tests.end_to_end.serving import Served, eventually, serving
from tests.end_to_end.test_lifetime import run

LONG = "the river falls and the mill wheel turns. " * 90


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that a model needs."""
    return ensure_model(TINY, "tiny", tmp_path_factory.mktemp("models"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy to be broken."""
    return Path(shutil.copytree(good, tmp_path / "model"))


def _rewrite(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


def test_a_host_that_is_not_ours_is_said_in_one_line() -> None:
    """Exit 1, before anything is loaded."""
    done = run("serve", "--port", "0", "--host", "192.0.2.1")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("penstock: cannot listen on 192.0.2.1:0")


def test_a_tokenizer_without_a_template_serves_completions(folder: Path) -> None:
    """Chats are refused with the reason, as a client error; texts are completed."""
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    _rewrite(folder / "tokenizer_config.json", lambda config: config.pop("chat_template", None))
    with serving("--model", str(folder), trained=True) as served:
        status, body = served.post()
        assert status == 400
        assert "no chat template" in body["error"]["message"]
        assert _completes(served)


def test_a_cache_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    """The embedded model and the BLAS are cached elsewhere, or made again; the log has a warning."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with serving(environment={"XDG_CACHE_HOME": str(in_the_way / "cache")}) as served:
        assert served.post()[0] == 200
        assert any(str(in_the_way) in line for line in served.log)


def test_a_disk_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """Who asks for prefixes that survive a restart learns it when they would not."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    done = run("serve", "--model", "embedded", "--port", "0", "--kv-disk", str(in_the_way / "kv"))
    assert done.returncode == 1
    assert f"--kv-disk {in_the_way / 'kv'} cannot be used: Not a directory" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_a_disk_that_takes_no_more_costs_nobody_an_answer(tmp_path: Path) -> None:
    """Every write of the tier fails as on a full disk: counted, and the answers are the same."""
    if sys.platform == "linux":
        with serving("--kv-disk", str(tmp_path)) as served:
            resource.prlimit(served.engine_pid(), resource.RLIMIT_FSIZE, (4096, 4096))
            messages = [{"role": "user", "content": LONG}]
            first = served.post(messages=messages, temperature=0)
            assert first[0] == 200
            eventually(lambda: served.metric("penstock_prefix_disk_errors_total") > 0, 20)
            again = served.post(messages=messages, temperature=0)
            assert again[1]["choices"][0]["message"] == first[1]["choices"][0]["message"]
            assert served.metric("penstock_engine_deaths_total") == 0
            assert served.get("/ready")[0] == 200
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 4096]


def _completes(served: Served) -> bool:
    body = json.dumps({"prompt": "hello", "max_tokens": 4}).encode()
    request = Request(served.url + "/v1/completions", body, {"content-type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return bool(json.loads(answer.read())["choices"][0]["finish_reason"] == "length")
