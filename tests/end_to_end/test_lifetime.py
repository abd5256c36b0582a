"""Start and end of `penstock serve`: the operator's output, and that nothing is left behind."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from contextlib import suppress
from functools import partial

import pytest
import trio

from loadtests.processes import is_gone
from tests.end_to_end.preloaded import run_penstock
from tests.end_to_end.raw_client import Answer, ask, request_bytes
from tests.end_to_end.serving import Served, eventually, start


async def _eventually_holds(served: Served, requests: int) -> None:
    def holds() -> bool:
        waiting, running = (
            served.metric("penstock_queued_requests"),
            served.metric("penstock_engine_requests"),
        )
        return waiting + running == requests

    await trio.to_thread.run_sync(eventually, holds)


def is_draining(served: Served) -> bool:
    status, body = served.get("/ready")
    return (status, body["status"]) == (503, "draining")


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a `penstock` that is expected to end by itself."""
    return run_penstock(*arguments, environment=environment)


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
    plan = "step_seconds=0.02"
    with start("--engine", "scripted", "--scripted", plan) as served:
        engine = served.engine_pid()

        async def main() -> Answer:
            answers: list[Answer] = []

            async def one() -> None:
                answers.append(await ask(served.port, max_tokens=150))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(one)
                await _eventually_holds(served, 1)
                served.process.send_signal(signal.SIGINT)
                await trio.to_thread.run_sync(eventually, partial(is_draining, served))
                late = await ask(served.port)
                assert late.status == 503
                assert served.metric("penstock_rejections_total", 'reason="draining"') == 1
            return answers[0]

        answer = trio.run(main)
        assert answer.finish_reason == "length"
        assert served.process.wait(60) == 0
        assert is_gone(engine)


def test_sigterm_with_a_stalled_client_ends_all_the_same() -> None:
    """A client that reads nothing cannot delay the exit beyond the drain's deadline."""
    plan = "step_seconds=0.0005"
    with start("--engine", "scripted", "--scripted", plan, "--drain-seconds", "1") as served:
        engine = served.engine_pid()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", served.port))
            client.sendall(request_bytes(max_tokens=39_000))
            # Until the kernel's buffers are full and the server's send waits; only time shows that.
            eventually(lambda: served.metric("penstock_generated_tokens_total") > 2000, 30)
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(60) == 0
        assert is_gone(engine)


def test_an_answer_that_the_drain_cuts_off_says_so() -> None:
    """An answer that outlasts the drain ends with an error event, not silently."""
    plan = "step_seconds=0.02"
    with start("--engine", "scripted", "--scripted", plan, "--drain-seconds", "0.5") as served:

        async def main() -> Answer:
            answers: list[Answer] = []

            async def one() -> None:
                answers.append(await ask(served.port, max_tokens=10_000))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(one)
                await _eventually_holds(served, 1)
                served.process.send_signal(signal.SIGTERM)
            return answers[0]

        answer = trio.run(main)
        assert [error["code"] for error in answer.errors] == ["shutting_down"]
        assert answer.events[-1] == "[DONE]"
        assert served.process.wait(60) == 0


def test_a_second_signal_stops_at_once() -> None:
    """For the operator who does not want to wait for the drain."""
    with start("--engine", "scripted", "--scripted", "step_seconds=0.02") as served:

        async def main() -> None:
            async with await trio.open_tcp_stream("127.0.0.1", served.port) as connection:
                await connection.send_all(request_bytes(max_tokens=30_000))
                await connection.receive_some()
                served.process.send_signal(signal.SIGINT)
                await trio.to_thread.run_sync(eventually, partial(is_draining, served))
                served.process.send_signal(signal.SIGINT)
                with suppress(trio.BrokenResourceError):
                    while await connection.receive_some():
                        pass

        trio.run(main)
        assert served.process.wait(60) == 0


@pytest.mark.long
def test_sigkill_of_the_server_leaves_no_engine() -> None:
    """The engine sees the link close and exits by itself."""
    with start("--engine", "scripted") as served:
        engine = served.engine_pid()
        served.process.kill()
        eventually(lambda: is_gone(engine))


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "words"),
    [
        (["--max-slots", "0"], {}, 2, "--max-slots"),
        (["--scripted", "die_at_step=1"], {}, 2, "die_at_step"),  # Faults are test code.
        (["--no-such-option"], {}, 2, "--no-such-option"),
        ([], {"PENSTOCK_MAX_SLOT": "3"}, 2, "PENSTOCK_MAX_SLOT"),
        (["--model", "./no/such/folder"], {}, 1, "--model"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(
    arguments: list[str], environment: dict[str, str], code: int, words: str
) -> None:
    """2 for an option, 1 for the thing it names; never a traceback."""
    done = run("serve", "--port", "0", *arguments, environment=environment)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
