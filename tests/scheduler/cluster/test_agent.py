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
from trio.testing import trio_test

from scheduler.cluster.agent import AgentUnusable, check_reachable, token_refusal
from scheduler.cluster.agent_messages import (
    AgentRefused,
    FromAgent,
    Nodes,
    RayNode,
    ServerAddress,
    agent_inbound,
    server_inbound,
)
from scheduler.cluster.cluster import agent_process
from scheduler.cluster.engine_actor import engine_environment
from scheduler.shared.framing import encode

_SECONDS = 60
PLACE = ServerAddress(("10.0.0.1",), 7000, "0" * 64, "off")
HAS_RAY = importlib.util.find_spec("ray") is not None


@contextmanager
def closed_port() -> Iterator[int]:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


async def heard(environment: dict[str, str], address: str) -> tuple[list[FromAgent], str]:
    """Return what an agent says until it ends, and its last words."""
    said: list[FromAgent] = []

    async def talk(stream: trio.abc.Stream) -> bool:
        reader = server_inbound()
        await stream.send_all(encode(PLACE))
        while data := await stream.receive_some():
            said.extend(reader.feed(data))
        return False

    with trio.fail_after(_SECONDS):
        last_words = (await agent_process(environment, address).run(talk)).last_words
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
    [message], _ = await heard(environment, "auto")
    assert isinstance(message, AgentRefused)
    assert "ray get-auth-token --generate" in message.reason


@pytest.mark.skipif(not HAS_RAY, reason="needs the extra 'cluster'")
@trio_test
async def test_the_agent_says_that_there_is_no_head() -> None:
    """At once, where Ray itself would try for a minute."""
    with closed_port() as port:
        [message], _ = await heard({**os.environ, "RAY_AUTH_MODE": "token"}, f"127.0.0.1:{port}")
    assert isinstance(message, AgentRefused)
    assert f"Ray's head at 127.0.0.1:{port} does not answer" in message.reason


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
@trio_test
async def test_the_agent_says_what_to_install() -> None:
    [message], _ = await heard({**os.environ, "RAY_AUTH_MODE": "token"}, "auto")
    assert isinstance(message, AgentRefused)
    assert "penstock[cluster]" in message.reason


def test_an_address_is_checked_before_ray_is() -> None:
    with closed_port() as port, pytest.raises(AgentUnusable, match="does not answer"):
        check_reachable(f"127.0.0.1:{port}")
    check_reachable("auto")


def test_an_agent_ends_with_its_server() -> None:
    """Before Ray is there, and without a word."""
    ours, theirs = socket.socketpair()
    with theirs:
        program = "import socket, sys; from scheduler.cluster.agent import ServerLink;"
        program += "ServerLink(socket.socket(fileno=int(sys.argv[1]))).server_address()"
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
    ours.close()
    assert process.wait(_SECONDS) == 0


def test_an_engine_gets_its_machines_environment() -> None:
    """Not what Ray sets for an actor without CPUs and cards."""
    own = {"PATH": "/bin", "HF_HOME": "/models", "PENSTOCK_DEVICE": "1"}
    rays = {"RAY_JOB_ID": "1", "RAY_AUTH_TOKEN": "secret", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    assert engine_environment(own | rays) == own
    assert engine_environment({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_messages_come_back_as_they_went() -> None:
    assert list(agent_inbound().feed(encode(PLACE))) == [PLACE]
    nodes = Nodes("10.0.0.1", (RayNode("id", "mac-1", "10.0.0.1", "10.0.0.1", 1),))
    assert list(server_inbound().feed(encode(nodes))) == [nodes]
    assert PLACE.token not in repr(PLACE)


@pytest.mark.parametrize(
    ("host", "name", "machine"),
    [("mac-1", "10.0.0.1", "mac-1"), ("mac-1", "mac-1", "mac-1"), ("mac-1", "left", "left")],
)
def test_a_machine_has_the_operators_name_or_its_own(host: str, name: str, machine: str) -> None:
    assert RayNode("id", host, name, "10.0.0.1", 1).machine == machine
    assert [RayNode("id", host, name, "10.0.0.1", 2).place(unit) for unit in range(2)] == [
        machine,
        f"{machine}:1",
    ]
