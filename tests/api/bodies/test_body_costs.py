"""The cost of a body: every field is bounded, memory is proportional, the event loop is never blocked for
long."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar, get_type_hints

import pytest
import trio
from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from trio.testing import MockClock, trio_test

from api.bodies import json_text
from api.bodies.body import Body
from api.bodies.body_reading import BodyRejected, read_body
from api.bodies.fields import MAX_ITEMS, AtMost
from api.dialects.json_route import MODELS as MODEL_PLACES
from api.dialects.json_route import JsonRoute, lane_of
from api.served_models import ServedModels
from scheduler.offload import Lane
from scheduler.request import ChatPrompt, TextPrompt, TokenPrompt, Tool
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import MODEL, app_of, client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

_T = TypeVar("_T")


def body_routes() -> dict[str, type[Body]]:
    """Return every path that takes a body, and its model."""
    app = app_of(ServedModels.of(make_scheduler(LoopbackLauncher()), MODEL))
    found: dict[str, type[Body]] = {}
    for route in _flat(app.routes):
        if route.body_field is not None:
            assert isinstance(route, JsonRoute), f"{route.path} reads its body on the event loop"
            model: Any = route.body_field.field_info.annotation
            found[route.path] = model
    return found


def _flat(routes: list[Any]) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            yield from _flat(route.original_router.routes)


MODELS = body_routes()


_BOUNDED = {
    "/v1/models": "the operator's names",
    "/v1/models/{name:path}": "one of them",
    "/v1/responses": "WebSocket is refused, whatever is asked",
    "/v1/responses/{response_id}": "three fields: deleted",
    "/v1/messages/count_tokens": "a number",
    "/v1/responses/input_tokens": "a number",
    "/v1/scheduler/requests/{request_id}": "the choices of one request, 64 at most",
    "/v1/cache": "numbers",
}
"""Routes whose answer FastAPI validates, copies and encodes on the event loop, and why it is small."""


def test_no_client_chooses_the_size_of_what_is_encoded_on_the_event_loop() -> None:
    """A route returns a `Response` (`BodyWork.response` makes one in slices), or its size has a bound."""
    app = app_of(ServedModels.of(make_scheduler(LoopbackLauncher()), MODEL))
    found: dict[str, bool] = {}
    for route in _flat(app.routes):
        returned = get_type_hints(route.endpoint)["return"]
        is_response = isinstance(returned, type) and issubclass(returned, Response)
        assert not is_response or route.response_model is None, f"{route.path} is dumped, too"
        found[route.path] = found.get(route.path, True) and is_response
    assert {path for path, is_response in found.items() if not is_response} == _BOUNDED.keys()


def faults(schema: Any, path: str = "") -> Iterator[str]:
    """Yield the lists and objects in a core schema that a client may fill without bound, or with more than
    one reported mistake, and the places where "yes" or 1 would do for true."""
    if isinstance(schema, list | tuple):
        for number, inner in enumerate(schema):
            yield from faults(inner, f"{path}[{number}]")
        return
    if not isinstance(schema, dict):
        return
    match schema.get("type"):
        case "list" if schema.get("max_length", 1 << 62) > 1 << 20 or not schema.get("fail_fast"):
            yield path
        case "set" | "frozenset" | "tuple" | "generator" | "dict":
            yield path
        case "bool" if not schema.get("strict"):
            yield path
        case "function-before" if _checks_members(schema):
            inner = schema["schema"]
            assert inner["type"] == "dict"
            yield from faults([inner.get("keys_schema"), inner.get("values_schema")], path)
            return
    for name, inner in schema.items():
        # The input schema only describes what a validator takes.
        if name not in ("metadata", "serialization", "cls", "config", "json_schema_input_schema"):
            yield from faults(inner, f"{path}.{name}")


def _checks_members(schema: dict[str, Any]) -> bool:
    owner = getattr(schema["function"]["function"], "__self__", None)
    return isinstance(owner, AtMost) and owner.members <= MAX_ITEMS


def many(count: int, text: str = "a") -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for _ in range(count)]


BODIES: list[tuple[str, Callable[[int, str], dict[str, Any]]]] = [
    ("/v1/chat/completions", lambda n, text: {"messages": many(n, text), "max_tokens": 1}),
    ("/v1/messages", lambda n, text: {"messages": many(n, text), "max_tokens": 1}),
    ("/v1/messages/count_tokens", lambda n, text: {"messages": many(n, text)}),
    ("/v1/responses", lambda n, text: {"input": many(n, text), "max_output_tokens": 1}),
    ("/tokenize", lambda n, text: {"messages": many(n, text)}),
]


@pytest.mark.parametrize("path", MODELS)
def test_every_list_and_object_has_a_bound_and_ends_with_its_first_mistake(path: str) -> None:
    """Pydantic collects 800 bytes for each mistake; one reported mistake is enough. And a client whose
    `stream` is "no" wants no stream."""
    assert list(faults(TypeAdapter(MODELS[path]).core_schema)) == []


@pytest.mark.parametrize(("path", "body"), BODIES, ids=[path for path, _ in BODIES])
def test_a_model_takes_a_bounded_number_of_bytes_for_each_object(
    path: str, body: Callable[[int, str], dict[str, Any]]
) -> None:
    """All objects and lists that a body may hold come to 160 MiB."""
    text = json.dumps(body(10_000, "a")).encode()
    tracemalloc.start()
    read_body(MODELS[path], text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000 * (160 << 20) / json_text.MAX_CONTAINERS


async def in_place(work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
    await trio.lowlevel.checkpoint()
    return work()


@pytest.mark.parametrize(("size", "most"), [(400, MODEL_PLACES), (60_000, 1)], ids=["plain", "large"])
@pytest.mark.parametrize(("path", "body"), BODIES, ids=[path for path, _ in BODIES])
def test_models_of_bodies_are_bounded_however_many_wait(
    path: str,
    body: Callable[[int, str], dict[str, Any]],
    size: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model exists from its validation until it is decoded: not all are validated before the first is
    decoded. One that is refused in between gives its place back."""
    models = set[int]()
    greatest = 0
    release = Body.release

    def counted(model: type[Body], text: bytes) -> Any:
        nonlocal greatest
        found = read_body(model, text)
        models.add(id(found[0]))
        greatest = max(greatest, len(models))
        return found

    def released(self: Body) -> None:
        models.discard(id(self))
        release(self)

    monkeypatch.setattr("api.dialects.json_route.read_body", counted)
    monkeypatch.setattr(Body, "release", released)
    text = json.dumps(body(size // 10, "word " * (size // 200))).encode()
    assert (lane_of(text) is Lane.LARGE) == (most == 1)

    @trio_test
    async def check(clock: MockClock) -> None:
        nonlocal greatest
        scheduler = make_scheduler(LoopbackLauncher())
        scheduler.offload = in_place
        async with running(scheduler), client_of(scheduler) as client, trio.open_nursery() as nursery:
            for _ in range(MODEL_PLACES + 1):
                await client.post(path, content=b'{"model":"no such",' + text[1:])
            models.clear()
            greatest = 0
            for _ in range(10):
                nursery.start_soon(partial(client.post, path, content=text))

    check(clock=MockClock(autojump_threshold=0))
    assert 1 <= greatest <= most


_MARK = "the text of a prompt"
_SAID = {"messages": many(3, _MARK), "tool_choice": "none"}
PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {**_SAID, "tools": [{"function": {"name": "f", "description": _MARK}}]}),
    ("/v1/completions", {"prompt": [_MARK, _MARK]}),
    ("/v1/messages", {"max_tokens": 9, "messages": many(3, _MARK), "system": _MARK}),
    ("/v1/responses", {"input": many(3, _MARK), "instructions": _MARK}),
    ("/v1/responses", {"input": many(3, _MARK), "background": True}),
]
_HOLDERS = (Body, ChatPrompt, TextPrompt, TokenPrompt, Tool)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), PROMPTS)
@trio_test
async def test_nobody_holds_the_objects_of_a_prompt_that_is_tokens(
    path: str, body: dict[str, Any], stream: bool, autojump_clock: MockClock
) -> None:
    """Its charge has ended, and the answer may take minutes: a thousand of them were gigabytes."""
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=100.0))
    async with running(scheduler) as nursery, client_of(scheduler) as client:
        nursery.start_soon(partial(client.post, path, json={**body, "stream": stream}))
        await trio.sleep(1.0)
        assert scheduler.busy
        held = [one for one in gc.get_objects() if isinstance(one, _HOLDERS) and _MARK in repr(one)]
        nursery.cancel_scope.cancel()
    assert held == []


LISTS = json.dumps({"a": [[]] * 1000})
CALLING: dict[str, Callable[[int], dict[str, Any]]] = {
    "/v1/chat/completions": lambda n: {
        "messages": [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": LISTS}}] * n}
        ]
    },
    "/v1/messages": lambda n: {
        "max_tokens": 1,
        "messages": [
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "a", "name": "f", "input": LISTS}] * n,
            },
            {"role": "user", "content": "go on"},
        ],
    },
    "/v1/responses": lambda n: {
        "input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": LISTS}] * n
    },
}
"""Bodies with n calls, each of which has a thousand lists in a text."""


@pytest.mark.parametrize("path", CALLING)
def test_json_in_strings_counts_as_the_body_s_own(path: str) -> None:
    """`arguments` is a text: 76 of them with 65,000 lists each were a gigabyte."""
    most = json_text.MAX_CONTAINERS // 1001
    read_body(MODELS[path], json.dumps(CALLING[path](most - 5)).encode())
    with pytest.raises(BodyRejected) as caught:
        read_body(MODELS[path], json.dumps(CALLING[path](most + 1)).encode())
    assert "more than 65536 objects and lists" in str(caught.value.error)


def test_what_is_validated_on_the_event_loop_is_small() -> None:
    """By bytes, objects and values: each alone can take a millisecond."""
    assert lane_of(b'{"prompt":"hello"}') is None
    assert lane_of(b'{"prompt":[' + b"1," * 1100 + b"1]}") is Lane.PLAIN
    assert lane_of(b'{"messages":[' + b"{}," * 30 + b"{}]}") is Lane.PLAIN
    assert lane_of(b'"' + b"a" * (1 << 17) + b'"') is Lane.PLAIN
    assert lane_of(b'"' + b"a" * (1 << 19) + b'"') is Lane.LARGE


@trio_test
async def test_an_echo_is_bounded(autojump_clock: MockClock) -> None:
    """By n, by the prompts, and by both."""
    scheduler = make_scheduler(LoopbackLauncher())
    long = "x" * (1 << 14)
    async with running(scheduler), client_of(scheduler) as client:
        for fields in (
            {"prompt": long, "n": 65},
            {"prompt": [long] * 33, "n": 2},
            {"prompt": [[65] * 8500] * 124},
        ):
            body = {"echo": True, "max_tokens": 1, **fields}
            answer = await client.post("/v1/completions", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "echo")
        whole = await client.post("/v1/completions", json={"prompt": long, "echo": True, "max_tokens": 1})
        assert whole.json()["choices"][0]["text"].startswith(long)


@trio_test
async def test_an_error_quotes_no_more_than_a_little(autojump_clock: MockClock) -> None:
    """A value may be a megabyte."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        for path in ("/v1/chat/completions", "/v1/messages"):
            answer = await client.post(path, json={"messages": many(1), "max_tokens": "x" * (1 << 20)})
            assert answer.status_code == 400
            assert len(answer.content) < 20_000
