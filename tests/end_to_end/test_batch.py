"""`penstock batch` beside a real server: ended in its middle, the same command goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.end_to_end.serving import ANSWER_SECONDS, Served

_REQUESTS = 40


def _command(served: Served, folder: Path) -> list[str]:
    files = [str(folder / "in.jsonl"), str(folder / "out.jsonl")]
    return [sys.executable, "-m", "api", "batch", *files, "--url", served.url]


def _answers(folder: Path) -> dict[str, Any]:
    entries = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert len({entry["custom_id"] for entry in entries}) == len(entries)
    return {entry["custom_id"]: entry["response"] for entry in entries}


def test_a_batch_that_was_ended_goes_on(scripted: Served, tmp_path: Path) -> None:
    with (tmp_path / "in.jsonl").open("w") as file:
        for number in range(_REQUESTS):
            messages = [{"role": "user", "content": f"number {number}"}]
            body = {
                "messages": messages,
                "max_tokens": 30,
                "temperature": 5 if number == _REQUESTS - 1 else 0,
            }
            entry = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(entry) + "\n")
    with subprocess.Popen(_command(scripted, tmp_path), stderr=subprocess.PIPE, text=True) as first:
        while not (tmp_path / "out.jsonl").exists() or not (tmp_path / "out.jsonl").stat().st_size:
            assert first.poll() is None
            time.sleep(0.01)
        first.send_signal(signal.SIGINT)
        assert first.stderr is not None
        said = first.stderr.read()
    some = _answers(tmp_path)
    assert first.returncode == 130, said
    assert "the same command goes on where this one ended" in said
    assert 0 < len(some) < _REQUESTS
    second = subprocess.run(
        _command(scripted, tmp_path), capture_output=True, text=True, timeout=ANSWER_SECONDS * 3
    )
    assert second.returncode == 1, "one request is refused"
    left = f"{_REQUESTS - len(some)} requests to send, {len(some)} answered already"
    assert left in second.stderr
    whole = _answers(tmp_path)
    assert set(whole) == set(map(str, range(_REQUESTS)))
    assert whole.items() >= some.items(), "an answer is given once"
    statuses = {name: answer["status_code"] for name, answer in whole.items()}
    assert statuses.pop(str(_REQUESTS - 1)) == 400
    assert set(statuses.values()) == {200}
    assert whole["0"]["body"]["usage"]["completion_tokens"] == 30
    assert "temperature" in whole[str(_REQUESTS - 1)]["body"]["error"]["message"]
    third = subprocess.run(_command(scripted, tmp_path), capture_output=True, text=True, timeout=60)
    assert (third.returncode, "1 refused before" in third.stderr) == (1, True)
    named = f"  {_REQUESTS - 1}: 400: "
    assert named in said + second.stderr
    assert named not in third.stderr
