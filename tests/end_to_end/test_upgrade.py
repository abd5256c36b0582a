"""A service is upgraded under clients that never stop asking: none is refused, no stream is cut.

`upgrade_under_load.py` does the same with 200 clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from loadtests.processes import children, is_gone
from tests.end_to_end.serving import eventually
from tests.end_to_end.upgrade_under_load import Clients, Supervised, beneath, supervised

CLIENTS = 12
PLAN = ("--engine", "scripted", "--scripted", "step_seconds=0.05")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    with supervised(tmp_path_factory.mktemp("service"), *PLAN) as service:
        yield service


def test_an_upgrade_and_a_rollback_cost_no_client_anything(service: Supervised) -> None:
    """One process takes the other's place in mid-stream; a version that ends leaves the second serving. The
    first is gone, with its engine, when its connections have ended."""
    clients = Clients(service.port, tokens=20)
    trio.run(clients.learn)
    first = service.serving_pid()
    engines = children(first)
    steps = [("upgrade",), ("upgrade", "--program", "/bin/false")]
    assert trio.run(beneath, service, clients, CLIENTS, steps) == [0, 1]
    assert not clients.faults
    assert clients.whole > 4 * CLIENTS
    second = service.serving_pid()
    assert second != first
    assert is_gone(first)
    assert all(map(is_gone, engines))


def test_the_folder_of_sockets_is_private(service: Supervised) -> None:
    """Who opens the control socket may start a program as the service's user."""
    folder = Path(service.environment["XDG_RUNTIME_DIR"]) / "penstock"
    eventually(lambda: len(list(folder.iterdir())) == 2)
    assert folder.stat().st_mode & 0o077 == 0
