"""Who may ask, and what a tenant can discover of another's prompts: on loopback and beyond."""

from __future__ import annotations

import socket

from tests.end_to_end.known_bad.asking import Ask, Asking
from tests.end_to_end.serving import Served, serving

SCRIPTED = ("--engine", "scripted")
SECRET = "The code of the drone is 4711, and nobody but us may know it."


def status_of(served: Served, head: str) -> int:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        return int(client.makefile("rb").readline().split()[1])


def test_a_rebound_name_is_refused_and_clients_without_a_browser_are_not() -> None:
    """`api/access/test_request_origin.py` has all forms."""
    with serving(*SCRIPTED, "--allowed-hosts", "chat.example") as served:
        assert not any('"event": "no_api_keys"' in line for line in served.log), served.log
        cases = {
            f"GET /v1/models HTTP/1.1\nhost: evil.example:{served.port}": 403,
            "GET /v1/models HTTP/1.1\nhost: chat.example": 200,
            f"GET /v1/models HTTP/1.1\nhost: localhost:{served.port}": 200,
            "GET /v1/models HTTP/1.0": 200,
            "GET http://evil.example/v1/models HTTP/1.1\nhost: localhost": 403,
            "OPTIONS * HTTP/1.1\nhost: evil.example": 403,
            "GET /live HTTP/1.1\nhost: localhost\norigin: http://evil.example\nconnection: upgrade\n"
            "upgrade: websocket\nsec-websocket-key: eA==\nsec-websocket-version: 13": 403,
        }
        assert {head: status_of(served, head) for head in cases} == cases


def test_a_server_open_to_the_network_says_so_and_takes_any_name() -> None:
    """A right guess of another tenant's prompt is never a prefix hit there, while its owner hits all of it;
    by keys: `known_bad/test_with_keys.py`."""
    with serving(*SCRIPTED, "--host", "0.0.0.0", "--tenant-header", "x-tenant") as served:
        assert sum('"event": "no_api_keys"' in line for line in served.log) == 1, served.log
        assert any("within a tenant" in line for line in served.log), served.log
        assert status_of(served, "GET /v1/models HTTP/1.1\nhost: elsewhere.example") == 200
        assert cached_tokens(served, "alice") == 0
        assert cached_tokens(served, "bob") == 0
        assert cached_tokens(served, "alice") > 20


def cached_tokens(served: Served, tenant: str) -> int:
    asked = Ask("/v1/completions", {"prompt": SECRET, "max_tokens": 1}, {"x-tenant": tenant})
    usage = Asking(served.port, asked, 30).join(30).body["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])
