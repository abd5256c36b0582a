"""The facts of a real machine: this one, once; and what a port says of itself."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from api.cli.doctor.facts import Port, port_fact
from tests.api.cli.stand_in import standing_in


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens and says nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield int(listener.getsockname()[1])


def test_this_machine_is_described_and_a_taken_port_is_why_it_could_not_serve(taken: int) -> None:
    command = [sys.executable, "-m", "api", "doctor", "--port", str(taken)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    levels = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()[3:-2] if line[0] != " "}
    assert {topic for topic, level in levels.items() if level == "problem"} == {"port"}
    assert {"device", "memory", "models"} <= set(levels)
    assert done.stdout.splitlines()[-1] == "penstock serve would fail: 1 problem"


def test_a_penstock_is_known_by_what_it_answers() -> None:
    with standing_in() as server:
        number = int(server.url.rpartition(":")[2])
        fact = port_fact(number)
    assert (fact.state, fact.number) == ("penstock", number)
    assert port_fact(number) == Port(number, "free")


def test_a_port_that_another_program_has_on_all_addresses_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS lets SO_REUSEADDR bind 127.0.0.1 beside another program's *, and clients find either."""
    with socket.create_server(("0.0.0.0", 0)) as other:
        monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
        monkeypatch.setattr(socket.socket, "listen", lambda *_: None)
        assert port_fact(int(other.getsockname()[1])).state == "taken"
