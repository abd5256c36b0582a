"""Access to a server on 127.0.0.1: `Host` as raw clients send it."""

from __future__ import annotations

import socket

import pytest

from tests.end_to_end.serving import Served, serving

SCRIPTED = ("--engine", "scripted")


def status_of(served: Served, head: str, port: int | None = None) -> int:
    with socket.create_connection(("127.0.0.1", port or served.port), timeout=10) as client:
        client.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        return int(client.makefile("rb").readline().split()[1])


def test_a_rebound_name_is_refused_and_clients_without_a_browser_are_not() -> None:
    with serving(*SCRIPTED, "--allowed-hosts", "chat.example") as served:
        cases = {
            "GET /v1/models HTTP/1.1\nhost: evil.example": 403,
            f"GET /v1/models HTTP/1.1\nhost: evil.example:{served.port}": 403,
            "GET /v1/models HTTP/1.1\nhost: chat.example": 200,
            f"GET /v1/models HTTP/1.1\nhost: [::1]:{served.port}": 200,
            f"GET /v1/models HTTP/1.1\nhost: localhost:{served.port}": 200,
            "GET /v1/models HTTP/1.0": 200,
            "GET /v1/models HTTP/1.0\nhost: evil.example": 403,
            "GET http://localhost/v1/models HTTP/1.1\nhost: evil.example": 501,
            "OPTIONS * HTTP/1.1\nhost: evil.example": 403,
            "GET /live HTTP/1.1\nhost: localhost\norigin: http://evil.example\nconnection: upgrade\n"
            "upgrade: websocket\nsec-websocket-key: eA==\nsec-websocket-version: 13": 403,
        }
        assert {head: status_of(served, head) for head in cases} == cases


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 403), ("0.0.0.0", 200)])
def test_only_loopback_listeners_check_by_themselves(host: str, status: int) -> None:
    with serving(*SCRIPTED, "--host", host) as served:
        assert status_of(served, "GET /v1/models HTTP/1.1\nhost: elsewhere.example") == status
