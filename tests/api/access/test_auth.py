"""API keys: who has access, whose request it is, and what a refusal does not reveal."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from api.access.api_keys import ApiKeys, load_keys
from api.options.options import load
from scheduler.errors import OptionError
from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

KEYS = load_keys("sk-one, farm:sk-two, ops:sk-admin admin", None)
BEARER = {"authorization": "Bearer sk-two"}
MESSAGE = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}


@trio_test
async def test_without_a_key_nothing_is_answered(autojump_clock: MockClock) -> None:
    """401 in the caller's dialect, whatever the path, before the body is read."""
    scheduler = make_scheduler(LoopbackLauncher())
    broken = {"content": b"{", "headers": {"content-type": "application/json"}}
    async with running(scheduler), client_of(scheduler, keys=KEYS) as client:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/v1/nothing"):
            response = await client.post(path, **broken)  # type: ignore[arg-type]
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "missing_api_key"
        for given in ({"x-api-key": "sk-wrong"}, {"authorization": "Bearer sk-on"}, {"x-api-key": "é"}):
            headers = httpx.Headers([(name.encode(), value.encode()) for name, value in given.items()])
            response = await client.post("/v1/messages", json=MESSAGE, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["type"] == "authentication_error"
            assert response.json()["type"] == "error"
        for given in (
            {"authorization": "Basic sk-two"},
            {"authorization": "Bearer"},
            {"authorization": "sk-two"},
        ):
            response = await client.post("/v1/chat/completions", json=chat(), headers=given)
            assert response.json()["error"]["code"] == "missing_api_key"
        assert (await client.get("/v1/models")).status_code == 401


@trio_test
async def test_either_header_opens_every_dialect(autojump_clock: MockClock) -> None:
    """And the endpoints for load balancers and collectors stay open."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler, keys=KEYS) as client:
        both = {**BEARER, "x-api-key": "sk-of-another-provider"}
        for headers in (BEARER, {"x-api-key": "sk-one"}, {"authorization": "bearer  sk-admin "}, both):
            assert (await client.post("/v1/messages", json=MESSAGE, headers=headers)).status_code == 200
            assert (
                await client.post("/v1/chat/completions", json=chat(), headers=headers)
            ).status_code == 200
            assert (await client.get("/v1/models", headers=headers)).status_code == 200
        for path in ("/health", "/ready", "/metrics", "/openapi.json", "/docs"):
            assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat()),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 8}),
        ("/v1/messages", MESSAGE),
    ],
)
@trio_test
async def test_the_key_names_the_tenant(path: str, body: dict[str, Any], autojump_clock: MockClock) -> None:
    """In every dialect; without keys there is one tenant."""
    scheduler = make_scheduler(LoopbackLauncher())
    with capture_logs() as logs:
        async with running(scheduler):
            for keys, headers in ((KEYS, BEARER), (KEYS, {"x-api-key": "sk-one"}), (ApiKeys(), {})):
                async with client_of(scheduler, keys=keys) as client:
                    assert (await client.post(path, json=body, headers=headers)).status_code == 200
    assert [one["tenant"] for one in logs if one["event"] == "request"] == ["farm", "default", ""]


@trio_test
async def test_tenants_do_not_see_each_others_responses(autojump_clock: MockClock) -> None:
    """Neither to read, nor to continue, nor to delete."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler, keys=KEYS) as client:
        body: dict[str, Any] = {"input": "x", "max_output_tokens": 2}
        made = (await client.post("/v1/responses", json=body, headers=BEARER)).json()["id"]
        other = {"x-api-key": "sk-one"}
        assert (await client.get(f"/v1/responses/{made}", headers=other)).status_code == 404
        assert (await client.delete(f"/v1/responses/{made}", headers=other)).status_code == 404
        body["previous_response_id"] = made
        assert (await client.post("/v1/responses", json=body, headers=other)).status_code == 400
        assert (await client.get(f"/v1/responses/{made}", headers=BEARER)).status_code == 200


OPERATORS = (
    *(("GET", "/v1/cache"), ("POST", "/v1/cache"), ("DELETE", "/v1/cache"), ("GET", "/v1/scheduler")),
    *(("GET", "/v1/scheduler/requests/x"), ("DELETE", "/v1/scheduler/requests/x"), ("GET", "/live")),
    *(("POST", "/v1/models/x/load"), ("POST", "/v1/models/x/unload")),
)


@pytest.mark.parametrize(("method", "path"), OPERATORS)
@trio_test
async def test_the_operators_endpoints_want_an_admin_key(
    method: str, path: str, autojump_clock: MockClock
) -> None:
    """403 for other keys, 401 for none; without keys, everybody is an operator."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler):
        async with client_of(scheduler, keys=KEYS) as client:
            refused = await client.request(method, path, headers=BEARER)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_only")
            assert (await client.request(method, path)).status_code == 401
        for keys in (KEYS, ApiKeys()) if path != "/live" else ():
            async with client_of(scheduler, keys=keys) as client:
                answer = await client.request(method, path, headers={"x-api-key": "sk-admin"})
                assert answer.status_code not in (401, 403), answer.text


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, also after the right one, and by digests of one length."""
    compared: list[tuple[int, int]] = []

    def compare(ours: bytes, given: bytes) -> bool:
        compared.append((len(ours), len(given)))
        return ours == given

    monkeypatch.setattr(hmac, "compare_digest", compare)
    found = KEYS.find("sk-one")
    assert found is not None
    assert found.tenant == "default"
    assert KEYS.find("") is None
    assert compared == [(32, 32)] * 6


def test_keys_come_from_options_and_a_file(tmp_path: Path) -> None:
    """Comments and empty lines are ignored; a tenant may have several keys."""
    file = tmp_path / "keys"
    file.write_text("# the farm\nfarm:a\n\nfarm:b\n  ops:c   admin\n")
    keys = load({"api_key": "d,x:e", "api_keys_file": str(file)}).keys()
    assert [(key.tenant, key.admin) for key in keys.keys] == [
        ("default", False),
        ("x", False),
        ("farm", False),
        ("farm", False),
        ("ops", True),
    ]
    assert load({}).keys() == ApiKeys()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        *((None, text) for text in ("", "secret-without-name", "a:b:secret", ":secret", "a:secret root")),
        (None, None),
        ("a:secret,b:secret", "c:d"),
        (" , ", "c:d"),
    ],
)
def test_a_bad_key_is_refused_and_not_told(given: str | None, text: str | None, tmp_path: Path) -> None:
    """The message names the place, not the key. An empty file, or none, does not open the server to
    everybody."""
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OptionError, match="--api-key") as caught:
        load_keys(given, file)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(load({"api_key": "secret"}))
    assert "secret" not in repr(load_keys("secret", None))


@trio_test
async def test_only_bearers_of_a_key_see_what_the_engine_died_of(autojump_clock: MockClock) -> None:
    """`/ready` needs no key; the engine's error text does. A wrong key counts as none there."""
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher)
    async with running(scheduler):
        launcher.kill()
        await trio.testing.wait_all_tasks_blocked()
        async with client_of(scheduler, keys=KEYS) as client:
            for headers, quoted in (({}, False), ({"x-api-key": "no-such"}, False), (BEARER, True)):
                answer = await client.get("/ready", headers=headers)
                assert answer.status_code == 503
                assert (answer.json()["last_death"] is not None) == quoted
        async with client_of(scheduler) as client:
            assert (await client.get("/ready")).json()["last_death"] is not None
