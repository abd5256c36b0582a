"""What smg does to requests and answers, in each dialect: the table of `docs/gateways.md`.

One front is asked directly and through smg. The engine gets the same, and so does the client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from api.access.api_keys import load_keys
from scheduler.shared.messages import Submit
from tests.api.client import events
from tests.api.dialects.test_chat_tools import HERMES, joined
from tests.api.test_agents import AGENTS, captured
from tests.api.transcripts import message_of, named_events, response_of
from tests.clients.test_frameworks import choose
from tests.end_to_end.serving import eventually
from tests.fakes.played_server import Asked, PlayedServer, playing
from tests.gateways.bodies import BODIES, CHAT, CLAUDE, COUNT, COUNTED, ITEMWISE, MESSAGES
from tests.gateways.gateways import gateway, smg

SECONDS = 60


@dataclass(frozen=True)
class Both:
    """The front, and smg in front of it."""

    front: PlayedServer
    through: str

    def ask(
        self, url: str, path: str, body: Any, **options: Any
    ) -> tuple[httpx.Response, list[Submit], Asked | None]:
        """Return the answer, what the engine got, and what the front got, unless smg answered by itself."""
        submits, before = len(self.front.engine.submits), len(self._asked(path))
        with httpx.Client(base_url=url, trust_env=False, timeout=SECONDS) as client:
            answer = client.post(path, json=body, **options)
        if url == self.front.url or "x-smg-routed-worker-id" in answer.headers:
            # The record is made when the answer is out.
            eventually(lambda: len(self._asked(path)) > before)
        arrived = self._asked(path)[before:]
        return answer, self.front.engine.submits[submits:], arrived[0] if arrived else None

    def _asked(self, path: str) -> list[Asked]:
        return [asked for asked in self.front.asked if asked.path == path]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with (
        playing(choose, HERMES) as front,
        gateway(smg, [front.url], tmp_path_factory.mktemp("smg")) as through,
    ):
        yield Both(front, through)


def said(path: str, answer: httpx.Response) -> Any:
    """Return an answer without what differs in every answer: ids, times, and how a stream is cut."""
    text = re.sub(r'"(resp|msg|rs|fc|call|chatcmpl|cmpl)[_-][0-9a-f]+"', r'"\1"', answer.text)
    text = re.sub(r'"request_id": ?"[^"]+"', '"request_id":""', text)
    text = re.sub(r'"(created|created_at|completed_at)":\d+', r'"\1":0', text)
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return json.loads(text)
    match path:
        case "/v1/messages":
            return message_of(named_events(text))
        case "/v1/responses":
            return response_of(named_events(text))
        case _:
            *chunks, end = events(text)
            assert end == "[DONE]"
            return [said_in(choice, chunks) for choice in range(2)]


def said_in(choice: int, chunks: list[Any]) -> Any:
    """Return one choice of a stream of chat completions or completions."""
    entries = [entry for chunk in chunks for entry in chunk["choices"] if entry["index"] == choice]
    tokens = [entry["logprobs"].get("content", entry["logprobs"]) for entry in entries if entry["logprobs"]]
    ends = [entry["finish_reason"] for entry in entries if entry["finish_reason"]]
    if entries and "text" in entries[0]:
        names = [name for one in tokens for name in one["tokens"]]
        return "".join(entry["text"] for entry in entries), names, ends
    return joined(chunks, choice), [token for one in tokens for token in one], ends


def drawn_alike(submit: Submit) -> Submit:
    """Return it without its number, and without the seed that each request gets."""
    sampling = msgspec.structs.replace(submit.sampling, seed=0)
    return msgspec.structs.replace(submit, request_id=0, sampling=sampling, session=None)


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{
        f"{name}, {how}": (path, {**fields, **more}, {})
        for name, (path, fields) in BODIES.items()
        for how, more in (("whole", {}), ("streamed", {"stream": True}))
    },
    "count_tokens": (COUNT, COUNTED, {}),
    "chat, refused": (CHAT, {"messages": MESSAGES, "bad_words": ["x"]}, {}),
    "messages, refused": (CLAUDE, {"messages": MESSAGES, "max_tokens": 5, "inference_geo": "moon"}, {}),
    **{
        agent: (sent["path"], sent["body"], {"params": sent["query"], "headers": sent["headers"]})
        for agent, sent in ((agent, captured(agent)) for agent in sorted({*AGENTS} - {"codex"}))
    },
}
"""Path, body and what else is sent; of agents what they sent themselves."""


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_the_same_through_smg(name: str, both: Both) -> None:
    """A refusal of the front, too, in the client's dialect. So is all that the engine gets; no field that smg
    adds is unknown here."""
    path, fields, options = CASES[name]
    body = {**fields, "model": "tiny"}
    direct, submits, _ = both.ask(both.front.url, path, body, **options)
    passed, again, asked = both.ask(both.through, path, body, **options)
    expected = 400 if name.endswith(", refused") else 200
    assert direct.status_code == passed.status_code == expected, passed.text
    assert said(path, passed) == said(path, direct)
    assert list(map(drawn_alike, again)) == list(map(drawn_alike, submits))
    assert passed.headers.get("x-penstock-ignored") == direct.headers.get("x-penstock-ignored")
    assert asked is not None
    assert asked.path == path


def test_which_headers_smg_passes_on(both: Both) -> None:
    """The fair queue's session is the routing key; who names it otherwise is no session for the front."""
    sent = {
        **{"x-smg-routing-key": "agent-7", "x-session-id": "s", "x-claude-code-session-id": "c"},
        **{"authorization": "Bearer k", "x-api-key": "k", "x-request-id": "r", "x-request-timeout": "9"},
        **{"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "x-tenant": "t"},
        **{"anthropic-version": "2023-06-01", "anthropic-beta": "b"},
    }
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5}
    answer, (submit,), asked = both.ask(both.through, CLAUDE, body, headers=sent)
    assert asked is not None
    assert {name for name in sent if asked.headers.get(name) == sent[name]} == {
        *("authorization", "x-request-id", "traceparent", "x-smg-routing-key"),
        *("anthropic-version", "anthropic-beta"),
    }
    assert (submit.session, answer.headers["x-request-id"]) == ("agent-7", "r")
    unnamed = {name: value for name, value in sent.items() if name != "x-smg-routing-key"}
    _, (submit,), _ = both.ask(both.through, CLAUDE, body, headers=unnamed)
    assert submit.session is None


def test_a_conversation_goes_on_and_is_not_retrieved(both: Both) -> None:
    """By its id in a body, but not by its path, which smg does not pass on."""
    body = {"model": "tiny", "input": "Hello"}
    first, _, _ = both.ask(both.through, ITEMWISE, body)
    body["previous_response_id"] = first.json()["id"]
    second, (submit,), _ = both.ask(both.through, ITEMWISE, body)
    assert second.json()["previous_response_id"] == first.json()["id"]
    assert bytes(submit.prompt.tolist()).count(b"Hello") == 3
    with httpx.Client(trust_env=False) as client:
        path = f"{ITEMWISE}/{first.json()['id']}"
        assert client.get(both.through + path).status_code == 404
        assert client.get(both.front.url + path).json()["id"] == first.json()["id"]


def test_keys_pass_where_smg_knows_them(tmp_path: Path) -> None:
    """Each client's own reaches the front, which so knows the tenant. No other gets past smg."""
    keys = load_keys("acme:one,ops:two admin", None)
    command = partial(smg, more=("--api-key", "two", "--tenant-api-key", "acme:one"))
    with playing(choose, HERMES, keys=keys) as front, gateway(command, [front.url], tmp_path) as through:
        both = Both(front, through)
        for path in (CHAT, CLAUDE):
            body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5}
            for key in ("one", "two"):
                sent = {"authorization": f"Bearer {key}"}
                answer, _, asked = both.ask(through, path, body, headers=sent)
                assert answer.status_code == 200
                assert asked is not None
                assert asked.headers["authorization"] == sent["authorization"]
            for refused in ({}, {"authorization": "Bearer no"}, {"x-api-key": "one"}):
                answer, _, asked = both.ask(through, path, body, headers=refused)
                assert (answer.status_code, asked) == (401, None)


def test_a_front_that_fails_is_asked_once_and_then_the_other(tmp_path: Path) -> None:
    """A request that has missed its deadline, or kills engines, is not made five times."""
    body = {"model": "tiny", "messages": MESSAGES, "timeout": 0.000001}
    with (
        playing(choose, HERMES) as one,
        playing(choose, HERMES) as two,
        gateway(smg, [one.url, two.url], tmp_path) as through,
        httpx.Client(trust_env=False, timeout=SECONDS) as client,
    ):
        answer = client.post(through + CHAT, json=body)
    # A front notes a request when its handler has returned, which its client does not wait for.
    posts = [[asked.path for asked in front.asked if asked.path == CHAT] for front in (one, two)]
    assert answer.status_code in (503, 504)
    assert json.loads(answer.text)["error"]["code"] == "deadline_exceeded"
    assert posts == [[CHAT], [CHAT]]
