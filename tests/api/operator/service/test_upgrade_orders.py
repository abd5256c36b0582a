"""In which order two processes run, where the operator does not say it."""

from __future__ import annotations

import os
import socket

import pytest

from api.operator.errors import OperatorError
from api.operator.service import upgrade
from api.operator.service.control import Order
from api.operator.service.upgrade import safe_order
from api.operator.service.upgrade_room import Engines
from api.options import load

GIB = 1 << 30


def test_beside_where_nothing_speaks_against_it() -> None:
    """A server whose metrics do not answer is no reason to refuse."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    said: list[str] = []
    assert safe_order(load({"port": str(port)}), os.getpid(), None, said.append) is Order.BESIDE
    assert said == ["memory     the server's metrics do not answer: how much memory it holds is not known"]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"kv_disk": "/var/prefixes"}, "--kv-disk is locked"), ({"engines": "ray"}, "one engine each")],
)
def test_the_operator_chooses_where_two_disturb_each_other(options: dict[str, str], said: str) -> None:
    """By an option that the message names."""
    with pytest.raises(OperatorError, match=said) as refused:
        safe_order(load(options), os.getpid(), None, lambda text: None)
    assert "--order one-at-a-time" in str(refused.value)


def test_two_models_that_do_not_fit_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are said before."""
    monkeypatch.setattr(upgrade, "fetch_engines", lambda url: Engines(10 * GIB, GIB, on_own_memory=False))
    monkeypatch.setattr(upgrade, "available_bytes", lambda: 4 * GIB)
    said: list[str] = []
    with pytest.raises(OperatorError, match="two engines do not fit"):
        safe_order(load({}), os.getpid(), None, said.append)
    assert "4.0 GiB are available" in said[0]
