"""Start and end of `penstock serve`: the operator's output, and that nothing is left behind."""

from __future__ import annotations

import json
import re
import signal
import socket

import pytest

from loadtests.processes import is_gone
from tests.end_to_end.raw_client import answers, request_bytes
from tests.end_to_end.serving import Served, eventually, start

SCRIPTED = ("--engine", "scripted", "--scripted")


def is_draining(served: Served) -> bool:
    status, body = served.get("/ready")
    return (status, body["status"]) == (503, "draining")


def runs(served: Served) -> bool:
    return served.metric("penstock_engine_requests") > 0


def test_a_start_is_six_lines(embedded: Served) -> None:
    """What it is, where it listens, and a command line to try; that the embedded model is for tests. All else
    is in the log."""
    url = re.escape(embedded.url)
    expected = [
        r"penstock \S+.*",
        r"model      embedded, \d+ MB of weights: the embedded model is for tests; .*smollm2",
        rf"listening  {url}",
        rf"page       {url}/",
        rf"chat       penstock chat --url {url}",
        r"try        curl .*",
    ]
    assert len(embedded.lines) == len(expected), embedded.lines
    assert all(map(re.fullmatch, expected, embedded.lines)), embedded.lines
    events = {line["event"]: line for line in map(json.loads, embedded.log)}
    assert events["model"]["blas"]
    # As stored (bfloat16), except on a CPU, which computes faster in float32.
    ready = events["engine_ready"]
    assert ready["weights_dtype"] == ("float32" if ready["device"] == "cpu" else "bfloat16")


def test_ctrl_c_lets_running_answers_finish() -> None:
    """SIGINT: no new requests (503 with Retry-After), the running one gets its whole answer, exit 0,
    and the engine process is gone."""
    with start(*SCRIPTED, "step_seconds=0.02") as served:
        engine = served.engine_pid()

        def interrupt() -> None:
            eventually(lambda: runs(served))
            served.process.send_signal(signal.SIGINT)
            eventually(lambda: is_draining(served))
            assert served.post()[0] == 503
            assert served.metric("penstock_rejections_total", 'reason="draining"') == 1

        (answer,) = answers(served.port, [("hello", {"max_tokens": 150})], interrupt)
        assert answer.finish_reason == "length"
        assert served.process.wait(60) == 0
        assert is_gone(engine)


def test_what_outlasts_the_drain_is_cut_off_and_says_so() -> None:
    """An answer ends with an error event, not silently; a client that reads nothing delays no exit."""
    with (
        start(*SCRIPTED, "step_seconds=0.0005", "--drain-seconds", "1") as served,
        socket.socket() as stalled,
    ):
        engine = served.engine_pid()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", served.port))
        stalled.sendall(request_bytes(max_tokens=39_000))

        def terminate() -> None:
            # Until the kernel's buffers are full and the server's send waits; only time shows that.
            eventually(lambda: served.metric("penstock_generated_tokens_total") > 4000)
            served.process.send_signal(signal.SIGTERM)

        (answer,) = answers(served.port, [("hello", {"max_tokens": 39_000})], terminate)
        assert [error["code"] for error in answer.errors] == ["shutting_down"]
        assert answer.events[-1] == "[DONE]"
        assert served.process.wait(60) == 0
        assert is_gone(engine)


def test_a_second_signal_stops_at_once() -> None:
    """For the operator who does not want to wait for the drain."""
    with start(*SCRIPTED, "step_seconds=0.02") as served:

        def interrupt_twice() -> None:
            eventually(lambda: runs(served))
            served.process.send_signal(signal.SIGINT)
            eventually(lambda: is_draining(served))
            served.process.send_signal(signal.SIGINT)

        (answer,) = answers(served.port, [("hello", {"max_tokens": 30_000})], interrupt_twice)
        assert b"[DONE]" not in answer.body
        assert served.process.wait(60) == 0


@pytest.mark.long
def test_sigkill_of_the_server_leaves_no_engine() -> None:
    """The engine sees the link close and exits by itself."""
    with start("--engine", "scripted") as served:
        engine = served.engine_pid()
        served.process.kill()
        eventually(lambda: is_gone(engine))
