"""Tenants, sessions and timeouts in requests."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from api.access.api_keys import ApiKey, ApiKeys
from api.access.identity import MAX_ID_CHARACTERS, SESSION_HEADERS, Identity
from api.options.options import load
from scheduler.errors import InvalidRequest, OptionError
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import chat, client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running


@given(st.dictionaries(st.sampled_from(SESSION_HEADERS), st.sampled_from(["", "one", "two words"])))
def test_the_first_header_that_says_something_is_the_session(headers: dict[str, str]) -> None:
    """Empty ones count as absent."""
    said = [headers[name] for name in SESSION_HEADERS if headers.get(name)]
    assert Identity().caller(headers).session == (said[0] if said else None)


@pytest.mark.parametrize("value", ["x" * (MAX_ID_CHARACTERS + 1), "tab\tinside", "é", " padded", "\x7f"])
@pytest.mark.parametrize("name", ["x-session-id", "x-tenant"])
def test_an_id_that_is_no_id_is_refused_by_the_headers_name(name: str, value: str) -> None:
    """Ids are stored, logged and shown, so they are short and printable."""
    with pytest.raises(InvalidRequest, match=name) as caught:
        Identity(tenant_header="x-tenant").caller({name: value})
    assert caught.value.param == name


def test_tenants_come_from_a_header_only_where_it_is_allowed() -> None:
    """Otherwise a client could claim any tenant. The key's owner outranks it."""
    headers = {"x-tenant": "acme"}
    assert Identity(tenant_header="x-tenant").caller(headers, "owner").tenant == "owner"
    for name in ("", "two words", "x:y", "é"):
        with pytest.raises(OptionError, match="--tenant-header"):
            load({"tenant_header": name})
    assert Identity().caller(headers).tenant == ""
    assert Identity(tenant_header="x-tenant").caller(headers).tenant == "acme"
    assert Identity(tenant_header="x-tenant").caller({}).tenant == ""


def test_a_credential_is_never_shown() -> None:
    """By `--tenant-header authorization` every key is a tenant, named by a digest."""
    identity = Identity(tenant_header="Authorization")
    one, same, other = (
        identity.caller({"Authorization": f"Bearer {key}"}).tenant for key in ("a1", "a1", "b2")
    )
    assert one == same != other
    assert one.startswith("key-")
    assert "a1" not in one
    assert len(one) == 20


@pytest.mark.parametrize(
    ("body", "header", "expected"),
    [(None, None, None), (5.0, None, 5.0), (None, "2.5", 2.5), (5.0, "2.5", 2.5), (2.0, "2.5", 2.0)],
)
def test_the_shorter_timeout_counts(body: float | None, header: str | None, expected: float | None) -> None:
    """The body's or the header's."""
    headers = {} if header is None else {"x-request-timeout": header}
    assert Identity().caller(headers).fields("", body)["timeout_seconds"] == expected


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf", "1e9", "30s"])
def test_a_timeout_that_is_none_is_refused(value: str) -> None:
    """By the header's name."""
    with pytest.raises(InvalidRequest, match="x-request-timeout"):
        Identity().caller({"x-request-timeout": value})


@trio_test
async def test_over_http_headers_and_body_become_the_request(autojump_clock: MockClock) -> None:
    """`/v1/scheduler` shows it while the request waits."""
    scheduler = make_scheduler(LoopbackLauncher(), max_slots=1, lookahead=0)
    identity = Identity(tenant_header="x-tenant")
    async with running(scheduler) as nursery, client_of(scheduler, identity=identity) as client:

        async def post(body: object, headers: dict[str, str]) -> None:
            await client.post("/v1/chat/completions", json=body, headers=headers)

        nursery.start_soon(post, chat("first", max_tokens=1000), {"X-Tenant": "A", "X-Session-ID": "s1"})
        await trio.testing.wait_all_tasks_blocked()
        body = chat("second", priority=3, cache_salt="mine", timeout=100)
        nursery.start_soon(post, body, {"X-Tenant": "B", "X-Claude-Code-Session-Id": "s2"})
        await trio.testing.wait_all_tasks_blocked()
        report = (await client.get("/v1/scheduler")).json()
        nursery.cancel_scope.cancel()
    (running_,) = report["running"]
    (flow,) = report["queue"]["flows"]
    assert (running_["tenant"], running_["session"], running_["priority"]) == ("A", "s1", 0)
    assert (flow["tenant"], flow["session"], flow["priority"]) == ("B", "s2", 3)


@trio_test
async def test_what_runs_out_of_time_is_a_504_and_an_error_event(autojump_clock: MockClock) -> None:
    """504 if nothing was sent yet; in a stream, the error and the end mark. A header that says no time is a
    400 by its name."""
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.01))
    async with running(scheduler), client_of(scheduler) as client:
        bad = await client.post("/v1/messages", json=chat(), headers={"x-request-timeout": "never"})
        assert (bad.status_code, "x-request-timeout" in bad.text) == (400, True)
        headers = {"x-request-timeout": "0.5"}
        whole = await client.post("/v1/chat/completions", json=chat(max_tokens=1000), headers=headers)
        streamed = await client.post(
            "/v1/chat/completions", json=chat(max_tokens=1000, stream=True), headers=headers
        )
    assert whole.status_code == 504
    assert whole.json()["error"]["code"] == "deadline_exceeded"
    assert whole.json()["error"]["type"] == "timeout_error"
    assert "retry-after" not in whole.headers
    assert streamed.status_code == 200
    assert '"code":"deadline_exceeded"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")


@trio_test
async def test_a_wait_that_the_service_ends_is_a_503(autojump_clock: MockClock) -> None:
    """And a bound on the client's tenant a 429; each with Retry-After."""
    scheduler = make_scheduler(
        LoopbackLauncher(),
        ScriptedPlan(step_seconds=0.01),
        max_slots=1,
        lookahead=0,
        max_queue_per_tenant=1,
        queue_seconds=0.5,
    )
    answers: dict[str, object] = {}
    async with running(scheduler), client_of(scheduler) as client:

        async def post(name: str) -> None:
            response = await client.post("/v1/chat/completions", json=chat(max_tokens=200))
            code = response.json().get("error", {}).get("code")
            answers[name] = (response.status_code, code, "retry-after" in response.headers)

        async with trio.open_nursery() as people:
            for name in ("runs", "waits too long", "too many"):
                people.start_soon(post, name)
                await trio.testing.wait_all_tasks_blocked()
    assert answers == {
        "runs": (200, None, False),
        "waits too long": (503, "queue_timeout", True),
        "too many": (429, "rate_limit_exceeded", True),
    }


KEYS = ApiKeys((ApiKey("a", sha256(b"a").digest()), ApiKey("b", sha256(b"b").digest(), admin=True)))


@pytest.mark.parametrize(
    ("options", "headers", "allowed"),
    [
        ({}, {}, True),
        ({"identity": Identity("x-tenant")}, {"x-tenant": "a"}, False),
        ({"keys": KEYS}, {"x-api-key": "a"}, False),
        ({"keys": KEYS}, {"x-api-key": "b"}, True),
    ],
    ids=["one tenant", "a proxy's tenants", "a key", "an operator's key"],
)
@trio_test
async def test_a_priority_before_others_is_a_right(
    options: dict[str, Any], headers: dict[str, str], allowed: bool, autojump_clock: MockClock
) -> None:
    """With -10 a tenant left the others 1.2 % of the service. One behind others is anybody's."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler, **options) as client:
        for priority, status in ((-1, 200 if allowed else 400), (0, 200), (10, 200)):
            for path, body in (("chat/completions", chat()), ("completions", {"prompt": "a"})):
                answer = await client.post(
                    f"/v1/{path}", json={**body, "priority": priority}, headers=headers
                )
                assert answer.status_code == status
                assert status == 200 or answer.json()["error"]["param"] == "priority"
