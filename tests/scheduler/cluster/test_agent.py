"""The agent's parts that need no Ray: what it insists on, what it leaves out, how it ends."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from scheduler.cluster.agent_process import AgentProcess
from scheduler.cluster.engine_host import host_environment
from scheduler.cluster.order import HostOrder
from trio.testing import trio_test

from scheduler.cluster.agent import Refused, check_reachable, token_refusal
from scheduler.cluster.agent_messages import (
    AgentRefused,
    FromAgent,
    Node,
    Nodes,
    StartHost,
    agent_inbound,
    front_inbound,
)
from scheduler.link.framing import encode

_SECONDS = 60
HAS_RAY = importlib.util.find_spec("ray") is not None


@contextmanager
def closed_port() -> Iterator[int]:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


async def talk(environment: dict[str, str], address: str) -> tuple[list[FromAgent], str]:
    """Return what an agent says until it ends, and its last words."""
    said: list[FromAgent] = []

    async def session(stream: trio.abc.Stream) -> None:
        reader = front_inbound()
        while data := await stream.receive_some():
            said.extend(reader.feed(data))

    with trio.fail_after(_SECONDS):
        last_words = await AgentProcess(environment, address).run(session)
    return said, last_words


@pytest.mark.parametrize("mode", [None, "disabled", ""])
def test_ray_without_tokens_is_refused(mode: str | None) -> None:
    """Everybody who reaches Ray's port may otherwise run code on every machine."""
    environment = {} if mode is None else {"RAY_AUTH_MODE": mode}
    assert "RAY_AUTH_MODE=token" in (token_refusal(environment) or "")
    assert token_refusal({"RAY_AUTH_MODE": "token"}) is None


@trio_test
async def test_the_agent_says_why_it_cannot_work() -> None:
    """In the environment of an operator who has not read the page."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    [message], _ = await talk(environment, "auto")
    assert isinstance(message, AgentRefused)
    assert "ray get-auth-token --generate" in message.reason


@pytest.mark.skipif(not HAS_RAY, reason="needs the extra 'cluster'")
@trio_test
async def test_the_agent_says_that_there_is_no_head() -> None:
    """At once, where Ray itself would try for a minute."""
    with closed_port() as port:
        [message], _ = await talk({**os.environ, "RAY_AUTH_MODE": "token"}, f"127.0.0.1:{port}")
    assert isinstance(message, AgentRefused)
    assert f"Ray's head at 127.0.0.1:{port} does not answer" in message.reason


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
@trio_test
async def test_the_agent_says_what_to_install() -> None:
    [message], _ = await talk({**os.environ, "RAY_AUTH_MODE": "token"}, "auto")
    assert isinstance(message, AgentRefused)
    assert "penstock[cluster]" in message.reason


def test_an_address_is_checked_before_ray_is() -> None:
    with closed_port() as port, pytest.raises(Refused, match="does not answer"):
        check_reachable(f"127.0.0.1:{port}")
    check_reachable("auto")


def test_an_agent_ends_with_its_front() -> None:
    """Before Ray is there, and without a word."""
    ours, theirs = socket.socketpair()
    with theirs:
        program = "import socket, sys; from scheduler.cluster.agent import Front;"
        program += "Front(socket.socket(fileno=int(sys.argv[1]))).serve(print)"
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
    ours.close()
    assert process.wait(_SECONDS) == 0


def test_a_host_process_gets_the_machines_environment() -> None:
    """Not what Ray sets for an actor without CPUs and cards."""
    own = {"PATH": "/bin", "HF_HOME": "/models", "PENSTOCK_DEVICE": "1"}
    rays = {"RAY_JOB_ID": "1", "RAY_AUTH_TOKEN": "secret", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    assert host_environment(own | rays) == own
    assert host_environment({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_messages_come_back_as_they_went() -> None:
    order = HostOrder(("10.0.0.1",), 7000, "0" * 64, "1" * 64, (("PENSTOCK_DEVICE", "1"),))
    start = StartHost(1, "node", order)
    assert list(agent_inbound().feed(encode(start))) == [start]
    nodes = Nodes("10.0.0.1", (Node("id", "mac-1", "10.0.0.1", "10.0.0.1", 1),))
    assert list(front_inbound().feed(encode(nodes))) == [nodes]
    assert "0" * 64 not in repr(start)


@pytest.mark.parametrize(
    ("host", "name", "machine"),
    [("mac-1", "10.0.0.1", "mac-1"), ("mac-1", "mac-1", "mac-1"), ("mac-1", "left", "mac-1 (left)")],
)
def test_a_machine_has_its_own_name_and_the_operators(host: str, name: str, machine: str) -> None:
    assert Node("id", host, name, "10.0.0.1", 1).machine == machine
