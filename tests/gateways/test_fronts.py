"""Two fronts behind each gateway: sessions stay where they are, and a front that dies or drains is left."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.access.identity import SESSION_HEADERS, TIMEOUT_HEADER, Identity
from tests.api.dialects.test_chat_tools import HERMES
from tests.end_to_end.serving import Served, eventually, serving, start
from tests.examples import sampled
from tests.fakes.played_server import playing
from tests.gateways.gateways import Command, gateway, haproxy, nginx, require, smg

PLAN = ("--engine", "scripted", "--scripted", "step_seconds=0.01")
MOST_SESSIONS = 200
"""Each is hashed to one of two fronts, so the first few find both."""
SECONDS = 60
"""A bound on failure."""
FAILURES = 40
"""More than a gateway forgives by default."""
END = "response.incomplete"
"""The last event of a stream that got all its tokens."""

BALANCERS = (nginx, haproxy)


def on(*sample: Command) -> pytest.MarkDecorator:
    """Each behaviour on two gateways in `make test-all`, on the third by `make test-long`."""
    cases = sampled([smg, *BALANCERS], sample)
    return pytest.mark.parametrize(
        "command", cases, ids=lambda one: one.__name__, indirect=True, scope="module"
    )


@pytest.fixture(scope="module")
def command(request: pytest.FixtureRequest) -> Command:
    """Skipped without it."""
    found: Command = request.param
    require(found)
    return found


@pytest.fixture(scope="module")
def stays() -> Iterator[Served]:
    with serving(*PLAN, trained=True) as served:
        yield served


@pytest.fixture(scope="module")
def other() -> Iterator[Served]:
    with serving(*PLAN, trained=True) as served:
        yield served


class Client:
    """Asks for responses, through a gateway."""

    def __init__(self, url: str, fronts: dict[str, Served]) -> None:
        self._fronts = fronts
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=SECONDS)

    def ask(self, session: str | None, **fields: Any) -> httpx.Response:
        return self._http.post("/v1/responses", json=body(**fields), headers=headers(session))

    def front(self, session: str | None) -> str:
        """Return the name of the front that answers, which alone has stored the answer."""
        answer = self.ask(session)
        assert answer.status_code == 200, answer.text
        path = f"/v1/responses/{answer.json()['id']}"
        living = {name: one for name, one in self._fronts.items() if one.process.poll() is None}
        return next(name for name, one in living.items() if one.get(path)[0] == 200)

    def past_due(self, session: str) -> httpx.Response:
        """Ask for a chat completion that no front can make in its time."""
        asked = {"model": "penstock-embedded", "messages": [{"role": "user", "content": "hello"}]}
        return self._http.post(
            "/v1/chat/completions", json={**asked, "timeout": 1e-6}, headers=headers(session)
        )

    @contextmanager
    def stream(self, session: str, **fields: Any) -> Iterator[Iterator[str]]:
        asked = body(stream=True, **fields)
        with self._http.stream("POST", "/v1/responses", json=asked, headers=headers(session)) as answer:
            assert answer.status_code == 200
            yield answer.iter_text()

    @contextmanager
    def waiting(self, **fields: Any) -> Iterator[None]:
        """A client that waits for a whole answer while the block runs, and then hangs up."""
        content = json.dumps(body(**fields)).encode()
        address = (self._http.base_url.host, self._http.base_url.port or 0)
        with socket.create_connection(address) as connection:
            head = f"POST /v1/responses HTTP/1.1\r\nhost: {address[0]}:{address[1]}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content)
            yield

    def close(self) -> None:
        self._http.close()

    def fronts(self, *names: str) -> dict[str, str]:
        """Return the front's name of each session: 8 of them, and more until each front has one."""
        found: dict[str, str] = {}
        for number in range(MOST_SESSIONS):
            found[f"agent-{number}"] = self.front(f"agent-{number}")
            if number >= 7 and set(found.values()) == set(names):
                return found
        pytest.fail(f"no session went to one of {names}: {found}")


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "penstock-embedded", "input": "hello", "max_output_tokens": 2, **fields}


def headers(session: str | None) -> dict[str, str]:
    return {} if session is None else {"x-session-id": session}


@contextmanager
def client_behind(command: Command, fronts: dict[str, Served], folder: Path) -> Iterator[Client]:
    with gateway(command, [served.url for served in fronts.values()], folder) as url:
        client = Client(url, fronts)
        try:
            yield client
        finally:
            client.close()


@on(smg, nginx)
def test_a_session_stays_at_its_front(command: Command, stays: Served, other: Served, tmp_path: Path) -> None:
    """Sessions are spread over the fronts, and so are requests without one. A conversation goes on where it
    is, and another front has none of it."""
    with client_behind(command, {"stays": stays, "other": other}, tmp_path) as client:
        fronts = client.fronts("stays", "other")
        assert {session: client.front(session) for session in fronts} == fronts
        eventually(lambda: client.front(None) == "stays")
        eventually(lambda: client.front(None) == "other")

        here, elsewhere = one_of_each(fronts).values()
        first = client.ask(here).json()["id"]
        assert client.ask(here, previous_response_id=first).status_code == 200
        lost = client.ask(elsewhere, previous_response_id=first)
    assert lost.status_code == 400
    assert lost.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("command", BALANCERS, ids=lambda command: command.__name__)
def test_balancers_pass_on_whatever_names_a_session(command: Command, tmp_path: Path) -> None:
    """And what names the tenant and the timeout."""
    with (
        playing(lambda number, prompt: "ok", HERMES, identity=Identity("x-tenant")) as played,
        gateway(command, [played.url], tmp_path) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=SECONDS) as client,
    ):
        others = {"x-tenant": "acme", TIMEOUT_HEADER: "50"}
        requests = [{name: f"by {name}", **others} for name in SESSION_HEADERS]
        for sent in requests:
            answer = client.post("/v1/responses", json={"input": "hello"}, headers=sent)
            assert answer.status_code == 200, answer.text
    sessions = [submit.session for submit in played.engine.submits]
    assert sessions == [f"by {name}" for name in SESSION_HEADERS]
    arrived = [asked.headers for asked in played.asked if asked.path == "/v1/responses"]
    assert all(sent.items() <= headers.items() for sent, headers in zip(requests, arrived, strict=True))


@on(nginx, haproxy)
def test_a_client_that_leaves_frees_its_slot(
    command: Command, stays: Served, other: Served, tmp_path: Path
) -> None:
    """Its stream comes token by token, and long before its end the front knows that nobody reads. Neither is
    an answer made to its end for which nobody waits."""

    def running() -> float:
        return sum(served.metric("penstock_running_slots") for served in (stays, other))

    with client_behind(command, {"stays": stays, "other": other}, tmp_path) as client:
        with client.stream("agent", max_output_tokens=20_000) as texts:
            until_delta(texts)
            eventually(lambda: running() == 1)
        eventually(lambda: running() == 0)
        with client.waiting(max_output_tokens=20_000):
            eventually(lambda: running() == 1)
        eventually(lambda: running() == 0)


@on(smg, nginx)
def test_a_client_whose_requests_fail_takes_no_front_from_the_others(
    command: Command, stays: Served, other: Served, tmp_path: Path
) -> None:
    """A gateway must not conclude from refusals that a front is broken."""
    with client_behind(command, {"stays": stays, "other": other}, tmp_path) as client:
        fronts = client.fronts("stays", "other")
        for number in range(FAILURES):
            assert client.past_due(f"agent-{number % len(fronts)}").status_code in (503, 504)
        assert {session: client.front(session) for session in fronts} == fronts


@on(smg, haproxy)
def test_a_front_that_dies_is_left_at_once(command: Command, stays: Served, tmp_path: Path) -> None:
    """Its streams end without an end of theirs; those of the other front, and all further requests, do not
    know."""
    with (
        start(*PLAN, trained=True) as dies,
        client_behind(command, {"stays": stays, "dies": dies}, tmp_path) as client,
    ):
        fronts = client.fronts("stays", "dies")
        with streaming(client, one_of_each(fronts)) as ended:
            dies.process.kill()
            dies.process.wait()
            assert {client.front(session) for session in fronts} == {"stays"}
            assert ended() == {"stays": True, "dies": False}


@on(smg, haproxy)
def test_a_front_that_drains_is_left_and_ends_its_streams(
    command: Command, stays: Served, tmp_path: Path
) -> None:
    """Nobody gets its 503; but HAProxy hashes a session that was refused to the same front again, until the
    next check has found that it is not ready."""
    with (
        start(*PLAN, trained=True) as drains,
        client_behind(command, {"stays": stays, "drains": drains}, tmp_path) as client,
    ):
        fronts = client.fronts("stays", "drains")
        with streaming(client, one_of_each(fronts)) as ended:
            drains.process.send_signal(signal.SIGTERM)
            eventually(lambda: drains.get("/ready")[0] == 503)
            if command is haproxy:
                left = one_of_each(fronts)["drains"]
                eventually(lambda: client.ask(left).status_code == 200)
            assert {client.front(session) for session in fronts} == {"stays"}
            assert ended() == {"stays": True, "drains": True}
        assert drains.process.wait(SECONDS) == 0


def one_of_each(fronts: dict[str, str]) -> dict[str, str]:
    """A session by each front's name."""
    return {name: session for session, name in fronts.items()}


@contextmanager
def streaming(client: Client, sessions: dict[str, str]) -> Iterator[Callable[[], dict[str, bool]]]:
    """A stream of each session, all of them begun. Yield what reads them to their ends, and says whether each
    came, by the front's name."""
    with ExitStack() as stack:
        streams = {
            name: stack.enter_context(client.stream(session, max_output_tokens=300))
            for name, session in sessions.items()
        }
        seen = {name: until_delta(texts) for name, texts in streams.items()}

        def read() -> dict[str, bool]:
            for name, texts in streams.items():
                with suppress(httpx.TransportError):
                    for text in texts:
                        seen[name] += text
            return {name: f"event: {END}\n" in text for name, text in seen.items()}

        yield read


def until_delta(texts: Iterator[str]) -> str:
    seen = ""
    while "output_text.delta" not in seen:
        seen += next(texts)
    return seen
