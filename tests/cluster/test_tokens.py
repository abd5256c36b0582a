"""Ray has to check tokens: the agent leaves a head that answers without one."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import trio

from scheduler.cluster.agent_messages import AgentRefused, FromAgent, Nodes, ServerAddress, server_inbound
from scheduler.cluster.cluster import agent_process
from scheduler.shared.framing import encode
from tests.cluster.machines import Machines, machines

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: 'make cluster'"),
    pytest.mark.timeout(300),
]
_SECONDS = 90


async def first_word(cluster: Machines) -> FromAgent:
    said: list[FromAgent] = []

    async def talk(stream: trio.abc.Stream) -> bool:
        reader = server_inbound()
        # Its port is nobody's: the actor gives up.
        await stream.send_all(encode(ServerAddress((), 9, "0" * 64, "off")))
        while not said and (data := await stream.receive_some()):
            said.extend(reader.feed(data))
        return False

    with trio.fail_after(_SECONDS):
        await agent_process({**os.environ, **cluster.environment}, cluster.address).run(talk)
    return said[0]


@pytest.mark.parametrize("tokens", [True, False], ids=["with tokens", "without"])
def test_only_a_head_that_checks_tokens_is_joined(tokens: bool, tmp_path: Path) -> None:
    with machines(tmp_path, more=(), tokens=tokens) as cluster:
        message = trio.run(first_word, cluster)
    if tokens:
        assert isinstance(message, Nodes)
        assert [node.name for node in message.nodes] == ["mac-1"]
    else:
        assert isinstance(message, AgentRefused)
        assert "answers without a token" in message.reason
        assert "ray get-auth-token" in message.reason
