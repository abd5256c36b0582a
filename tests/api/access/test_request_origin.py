"""Allowed `Host`, `Origin` and `Sec-Fetch-*` headers of requests: DNS rebinding, foreign web pages."""

from __future__ import annotations

import pytest
from trio.testing import MockClock, trio_test

from api.access.allowed_hosts import AllowedHosts
from api.access.api_keys import load_keys
from api.options.options import load
from scheduler.errors import OptionError
from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

LOOPBACK = AllowedHosts.of([], listen_host="127.0.0.1", is_loopback=True)
PUBLIC = AllowedHosts.of([], listen_host="0.0.0.0", is_loopback=False)
NAMED = AllowedHosts.of(["chat.example"], listen_host="127.0.0.1", is_loopback=True)
PUBLIC_NAMED = AllowedHosts.of(["chat.example"], listen_host="0.0.0.0", is_loopback=False)
EVERY_HOST = AllowedHosts.of(["*"], listen_host="127.0.0.1", is_loopback=True)
MACHINE = AllowedHosts.of([], listen_host="127.0.0.1", is_loopback=True, own_name="Studio.evil.example")
OWN_NAME = AllowedHosts.of([], listen_host="studio", is_loopback=True)


@pytest.mark.parametrize(
    ("hosts", "host", "allowed"),
    [
        (LOOPBACK, "localhost", True),
        (LOOPBACK, "localhost.:8000", True),
        (LOOPBACK, "127.0.0.1:8000", True),
        (LOOPBACK, "[::1]:8000", True),
        (LOOPBACK, "evil.example:8000", False),
        (LOOPBACK, "localhost.evil.example", False),
        (LOOPBACK, "127.0.0.1.evil.example", False),
        (LOOPBACK, "127.0.0.1@evil.example", False),
        (LOOPBACK, "localhost:port", False),
        # An address cannot be rebound, and what a page's <img> can reach here changes nothing.
        (LOOPBACK, "0.0.0.0:8000", True),
        (LOOPBACK, "penstock.localhost:8000", True),
        (LOOPBACK, "host.docker.internal:8000", True),
        (LOOPBACK, "studio.local", True),
        (LOOPBACK, "evil.local.example", False),
        (LOOPBACK, "studio", False),
        (MACHINE, "studio:8000", True),
        # The network may have assigned the rest.
        (MACHINE, "studio.evil.example", False),
        (NAMED, "host.docker.internal", False),
        (PUBLIC_NAMED, "studio.local", False),
        (LOOPBACK, "192.168.1.5", False),
        (NAMED, "chat.example", True),
        (NAMED, "CHAT.example:443", True),
        (NAMED, "evil.example", False),
        (NAMED, "sub.chat.example", False),
        (OWN_NAME, "studio:8000", True),
        (PUBLIC, "evil.example", True),
        (PUBLIC_NAMED, "chat.example", True),
        # Probes and scrapers address a pod by IP, and an IP address cannot be rebound.
        (PUBLIC_NAMED, "10.1.2.3:8000", True),
        (EVERY_HOST, "evil.example", True),
    ],
)
def test_hosts(hosts: AllowedHosts, host: str, allowed: bool) -> None:
    assert hosts.allow(host) is allowed


@pytest.mark.parametrize("given", ["http://chat.example", "chat.example/", "a b", "chat.example:http"])
def test_what_is_no_host_name_is_refused_at_start(given: str) -> None:
    with pytest.raises(OptionError, match="--allowed-hosts"):
        load({"allowed_hosts": f"localhost,{given}"})


KEYS = load_keys("sk", None)
LOCAL = {"host": "localhost:8000"}
CROSS_IMAGE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
CROSS_NAVIGATION = {
    "sec-fetch-site": "cross-site",
    "sec-fetch-mode": "navigate",
    "sec-fetch-dest": "document",
}
CROSS_FRAME = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
UPGRADE = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        # Clients other than browsers.
        ("/v1/models", {}, 200),
        ("/v1/models", {"host": ""}, 200),
        # Rebinding: the page's own name, whatever else the browser sends.
        ("/v1/cache", {"host": "evil.example:8000"}, 403),
        ("/v1/cache", {"host": "evil.example:8000", "sec-fetch-site": "same-origin"}, 403),
        ("/metrics", {"host": "evil.example:8000"}, 403),
        # The live page by each of the names.
        ("/", {"host": "127.0.0.1:8000", "sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, 200),
        ("/v1/models", {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}, 200),
        ("/v1/models", {"host": "localhost:8000", "sec-fetch-site": "same-origin"}, 200),
        ("/v1/models", {"host": "localhost", "origin": "http://localhost:80"}, 200),
        # A proxy that terminates TLS and keeps the name.
        ("/v1/models", {"host": "localhost", "origin": "https://localhost"}, 200),
        # Other web pages.
        ("/v1/models", {**LOCAL, "origin": "http://evil.example"}, 403),
        ("/v1/models", {**LOCAL, "origin": "http://localhost:3000"}, 403),
        ("/v1/models", {**LOCAL, "origin": ""}, 403),
        ("/v1/models", {**LOCAL, "origin": "https://ok.example", "sec-fetch-site": "cross-site"}, 200),
        # Applications' web views, by schemes that no web site can have.
        ("/v1/models", {**LOCAL, "origin": "app://obsidian.md", "sec-fetch-site": "cross-site"}, 200),
        ("/v1/models", {**LOCAL, "origin": "vscode-webview://1a2b"}, 200),
        ("/v1/models", {**LOCAL, "origin": "file://"}, 200),
        ("/v1/models", {"host": "evil.example", "origin": "app://obsidian.md"}, 403),
        ("/v1/models", {**LOCAL, "origin": "http://evil.example/app://x"}, 403),
        ("/v1/models", {**LOCAL, "origin": "myapp://x"}, 403),
        ("/v1/models", {**LOCAL, **UPGRADE, "origin": "http://evil.example"}, 403),
        # Without Origin: images, scripts, frames.
        ("/v1/cache", {**LOCAL, **CROSS_IMAGE}, 403),
        ("/", {**LOCAL, **CROSS_IMAGE}, 403),
        ("/", {**LOCAL, **CROSS_FRAME}, 403),
        # A link may lead to open paths, and to nothing that costs the engine a turn.
        ("/", {**LOCAL, **CROSS_NAVIGATION}, 200),
        ("/v1/cache", {**LOCAL, **CROSS_NAVIGATION}, 403),
    ],
)
@trio_test
async def test_requests(path: str, headers: dict[str, str], status: int, autojump_clock: MockClock) -> None:
    scheduler = make_scheduler(LoopbackLauncher())
    async with (
        running(scheduler),
        client_of(scheduler, hosts=LOOPBACK, cors_origins=["https://ok.example"]) as client,
    ):
        answer = await client.get(path, headers={**LOCAL, **headers})
        assert answer.status_code == status, answer.text
        if status == 403:
            assert answer.json()["error"]["type"] == "permission_error"
            assert answer.headers["x-request-id"]


@trio_test
async def test_a_foreign_request_never_reaches_the_scheduler(autojump_clock: MockClock) -> None:
    """In the form of the request's dialect, also for a preflight."""
    scheduler = make_scheduler(LoopbackLauncher())
    foreign = {**LOCAL, "origin": "http://evil.example"}
    async with running(scheduler), client_of(scheduler, hosts=LOOPBACK) as client:
        refused = await client.post("/v1/chat/completions", json=chat(), headers=foreign)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert "--cors-origins" in refused.json()["error"]["message"]
        rebound = await client.post("/v1/messages", json={}, headers={"host": "evil.example"})
        assert rebound.status_code == 403
        assert rebound.json()["type"] == "error"
        assert rebound.json()["error"]["type"] == "permission_error"
        assert "--allowed-hosts" in rebound.json()["error"]["message"]
        ask = {**foreign, "access-control-request-method": "DELETE"}
        assert (await client.options("/v1/cache", headers=ask)).status_code == 403
        # The body of a link's form would start work.
        form = await client.post("/v1/chat/completions", json=chat(), headers={**LOCAL, **CROSS_NAVIGATION})
        assert form.status_code == 403
        assert scheduler.metrics.prompt_tokens._value.get() == 0
        assert (await client.post("/v1/chat/completions", json=chat(), headers=LOCAL)).status_code == 200


@pytest.mark.parametrize(
    ("origin", "given", "status"),
    [
        ("app://obsidian.md", [], 200),
        ("tauri://localhost", ["https://ok.example"], 200),
        ("https://ok.example", ["https://ok.example"], 200),
        ("chrome-extension://abc", ["chrome-extension://*"], 200),
        ("null", ["null"], 200),
        ("https://any.example", ["*"], 200),
        ("https://ok.example.evil", ["https://ok.example"], 403),
        ("https://okxexample", ["https://ok.example"], 403),
        ("chrome-extension://abc", [], 403),
        ("null", [], 403),
    ],
)
@trio_test
async def test_an_allowed_origin_s_preflight_is_answered(
    origin: str, given: list[str], status: int, autojump_clock: MockClock
) -> None:
    """Without a key, which a preflight never has; also where the browser asks whether a page may reach the
    user's own network; and the answer can be read."""
    scheduler = make_scheduler(LoopbackLauncher())
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    network = {"access-control-request-private-network": "true"}
    async with (
        running(scheduler),
        client_of(scheduler, hosts=LOOPBACK, cors_origins=given, keys=KEYS) as client,
    ):
        sent = {**LOCAL, "origin": origin}
        preflight = await client.options("/v1/chat/completions", headers={**sent, **asks, **network})
        answer = await client.get("/v1/models", headers={**sent, "x-api-key": "sk"})
    assert (preflight.status_code, answer.status_code) == (status, status)
    allowed = {one.headers.get("access-control-allow-origin") for one in (preflight, answer)}
    assert allowed <= ({origin, "*"} if status == 200 else {None})
    if status == 403:
        assert "--cors-origins" in answer.json()["error"]["message"]
