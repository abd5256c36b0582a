"""Broken folders and disks that a server runs without; what ends the start is in `test_start_errors.py`."""

from __future__ import annotations

import resource
import shutil
import sys
from pathlib import Path

import pytest

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from tests.end_to_end.serving import eventually, serving

LONG = [{"role": "user", "content": "the river falls and the mill wheel turns. " * 90}]


def test_a_tokenizer_without_a_template_serves_completions(tmp_path: Path) -> None:
    """Chats are refused with the reason, as a client error; texts are completed."""
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED_FOLDER, folder)
    (folder / "chat_template.jinja").unlink()
    with serving("--model", str(folder), trained=True) as served:
        status, body = served.post()
        assert status == 400
        assert "no chat template" in body["error"]["message"]
        status, body = served.post("/v1/completions", prompt="hello", max_tokens=4)
        assert (status, body["choices"][0]["finish_reason"]) == (200, "length")


def test_a_cache_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    """The embedded model and the BLAS are cached elsewhere, or made again; the log has a warning."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with serving(environment={"XDG_CACHE_HOME": str(in_the_way / "cache")}) as served:
        assert served.post()[0] == 200
        assert any(str(in_the_way) in line for line in served.log)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_a_disk_that_takes_no_more_costs_nobody_an_answer(tmp_path: Path) -> None:
    """Every write of the tier fails as on a full disk: counted, and the answers are the same."""
    if sys.platform == "linux":
        with serving("--kv-disk", str(tmp_path)) as served:
            resource.prlimit(served.engine_pid(), resource.RLIMIT_FSIZE, (4096, 4096))
            first = served.post(messages=LONG, temperature=0)
            assert first[0] == 200
            eventually(lambda: served.metric("penstock_prefix_disk_errors_total") > 0, 20)
            again = served.post(messages=LONG, temperature=0)
            assert again[1]["choices"][0]["message"] == first[1]["choices"][0]["message"]
            assert served.metric("penstock_engine_deaths_total") == 0
            assert served.get("/ready")[0] == 200
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 4096]
