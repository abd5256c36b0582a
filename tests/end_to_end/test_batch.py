"""`penstock batch` beside a real server: ended in its middle, the same command goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.end_to_end.serving import ANSWER_SECONDS, Served, eventually

_REQUESTS = 40
_REFUSED = str(_REQUESTS - 1)


def _answers(folder: Path) -> dict[str, Any]:
    entries = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert len({entry["custom_id"] for entry in entries}) == len(entries)
    return {entry["custom_id"]: entry["response"] for entry in entries}


def test_a_batch_that_was_ended_goes_on(scripted: Served, tmp_path: Path) -> None:
    read, written = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with read.open("w") as file:
        for number in range(_REQUESTS):
            messages = [{"role": "user", "content": f"number {number}"}]
            body = {
                "messages": messages,
                "max_tokens": 30,
                "temperature": 5 if str(number) == _REFUSED else 0,
            }
            entry = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(entry) + "\n")
    command = [sys.executable, "-m", "api", "batch", str(read), str(written), "--url", scripted.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
        eventually(lambda: written.exists() and written.stat().st_size > 0)
        first.send_signal(signal.SIGINT)
        assert first.stderr is not None
        said = first.stderr.read()
    some = _answers(tmp_path)
    assert first.returncode == 130, said
    assert "the same command goes on where this one ended" in said
    assert 0 < len(some) < _REQUESTS
    second = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS * 3)
    assert second.returncode == 1, "one request is refused"
    assert f"{_REQUESTS - len(some)} requests to send, {len(some)} answered already" in second.stderr
    whole = _answers(tmp_path)
    assert set(whole) == set(map(str, range(_REQUESTS)))
    assert whole.items() >= some.items(), "an answer is given once"
    refused = whole.pop(_REFUSED)
    assert refused["status_code"] == 400
    assert "temperature" in refused["body"]["error"]["message"]
    assert {answer["status_code"] for answer in whole.values()} == {200}
    assert whole["0"]["body"]["usage"]["completion_tokens"] == 30
    third = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    assert (third.returncode, "1 refused before" in third.stderr) == (1, True)
    assert f"  {_REFUSED}: 400: " in said + second.stderr
    assert f"  {_REFUSED}: 400: " not in third.stderr
