"""Which server a command talks to, and what it says of answers that are of no use."""

from __future__ import annotations

import json
from dataclasses import replace

import click
import httpx
import pytest

from api.access.api_keys import client_key
from api.cli.errors import OperatorError
from api.cli.running_server import (
    DEFAULT_URL,
    Address,
    ListedModel,
    RunningServer,
    address,
    base_url,
    find,
    refusal,
)

HERE = Address("http://127.0.0.1:9")
ENTRY = {"id": "tiny", "owned_by": "penstock", "max_model_len": 4096, "task": "chat"}


def answering(status: int, body: object, **headers: str) -> httpx.MockTransport:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.MockTransport(lambda request: httpx.Response(status, content=content, headers=headers))


def failing(error: Exception) -> httpx.MockTransport:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error

    return httpx.MockTransport(fail)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("https://gateway/llm/v1", "https://gateway/llm"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        *((wrong, "") for wrong in ("ftp://x", "http://", "http://a\tb", "http://me:pw@x", "x?a=1")),
    ],
)
def test_an_address_may_be_written_as_clients_write_it(text: str, url: str) -> None:
    if url:
        assert base_url(text) == url
    else:
        with pytest.raises(click.BadParameter):
            base_url(text)


def test_the_key_may_be_in_the_variable_as_the_server_reads_it() -> None:
    """An operator has one environment for server and client."""
    found = [
        address(None, None, {"PENSTOCK_API_KEY": text}).key
        for text in ("", "k1", "acme:k1, ops:k2 admin", "k1,k2", "sk:with:colons")
    ]
    assert found == [None, "k1", "k2", "k1", "sk:with:colons"]
    assert address(None, "given", {"PENSTOCK_API_KEY": "k1"}).key == "given"
    assert client_key(" , ") == ","


def test_the_variable_of_serve_moves_the_default() -> None:
    """An operator who moved the server with `PENSTOCK_PORT` finds it with every command; `--url` and
    `PENSTOCK_URL` prevail."""
    moved = {"PENSTOCK_PORT": "18400"}
    assert address(None, None, {}) == address(None, None, {"PENSTOCK_PORT": "0"}) == Address(DEFAULT_URL)
    assert address(None, None, moved) == Address("http://127.0.0.1:18400")
    assert address("http://x", None, moved).url == "http://x"
    for port in ("", "-1", "65536", "\N{ARABIC-INDIC DIGIT ONE}"):
        with pytest.raises(click.BadParameter, match="PENSTOCK_PORT"):
            address(None, None, {"PENSTOCK_PORT": port})


@pytest.mark.parametrize(
    ("url", "applies"),
    [
        ("http://127.0.0.1:8000", False),
        ("http://[::1]:1", False),
        ("http://localhost", False),
        ("http://x", True),
    ],
)
def test_a_proxy_is_not_asked_for_this_machine(url: str, applies: bool) -> None:
    assert Address(url).trust_env is applies


def test_a_server_says_what_it_serves() -> None:
    models = {"data": [ENTRY, {"id": "other"}, {"id": "e", "task": "embedding", "max_model_len": None}]}
    server = find(Address(HERE.url, "k"), answering(200, models))
    listed = (ListedModel("tiny", 4096), ListedModel("other"), ListedModel("e", None, "embedding"))
    assert server == RunningServer(HERE.url, "k", listed, is_penstock=True)
    assert server.model(None).name == "tiny"
    assert server.model("other").name == "other"
    assert [model.name for model in server.chat_models] == ["tiny", "other"]
    with pytest.raises(OperatorError, match="'big'; it has tiny, other, e"):
        server.model("big")
    with pytest.raises(OperatorError, match="no model that chats: e"):
        replace(server, models=listed[2:]).model(None)


@pytest.mark.parametrize(
    ("entry", "header", "ours"),
    [
        (ENTRY, "nginx", True),
        ({"id": "x"}, "penstock", True),
        ({"id": "x", "owned_by": "vllm"}, "uvicorn", False),
    ],
)
def test_penstock_is_known_among_other_servers(entry: object, header: str, ours: bool) -> None:
    assert find(HERE, answering(200, {"data": [entry]}, server=header)).is_penstock is ours


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, {}, "wants an API key: give --api-key"),
        (
            403,
            {"error": {"message": "the host 'x' is not allowed"}},
            "answered 403: the host 'x' is not allowed",
        ),
        (502, b"", "answered 502: Bad Gateway"),
        (200, b"<html>hello</html>", "is not an OpenAI-compatible server"),
        (200, {"data": ["tiny"]}, "is not an OpenAI-compatible server"),
    ],
)
def test_another_answer_says_what_is_wrong(status: int, body: object, says: str) -> None:
    with pytest.raises(OperatorError, match=says) as caught:
        find(HERE, answering(status, body))
    assert "\n" not in str(caught.value)
    if status == 401:
        with pytest.raises(OperatorError, match="does not know the API key"):
            find(Address(HERE.url, "k"), answering(401, {}))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (httpx.ConnectError("refused"), "no server answers at http://127.0.0.1:9: refused"),
        (httpx.ConnectTimeout(""), "no server answers at http://127.0.0.1:9: ConnectTimeout"),
        (httpx.ReadTimeout(""), "accepts connections, but is silent"),
        (httpx.RemoteProtocolError("illegal status line"), "was lost: illegal status line"),
    ],
)
def test_a_transports_error_is_a_line(error: Exception, says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        find(HERE, failing(error))


def test_a_refusal_is_one_short_line() -> None:
    assert refusal(503, b'{"error": {"message": "the queue\\nis full"}}') == "503: the queue is full"
    assert refusal(400, b'{"error": "bad"}') == "400: bad"
    assert refusal(599, b"\xff") == "599"
    assert len(refusal(400, json.dumps({"error": {"message": "x" * 9999}}).encode())) < 400
