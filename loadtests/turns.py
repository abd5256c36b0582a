"""Turns of conversations, asked several at a time: how long each took, and the tokens of its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import trio

from api.cli.event_lines import EventLines

_HEADERS = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. `tokens`: those of the answer, as text; empty where they were not asked for."""

    seconds: float
    first_token_seconds: float
    prompt_tokens: int
    cached_tokens: int
    tokens: tuple[str, ...] = ()


async def ask_all(
    http: httpx.AsyncClient, url: str, bodies: Sequence[dict[str, Any]], clients: int
) -> list[Turn]:
    """Return the turns in the order of `bodies`. Raise httpx.HTTPStatusError."""
    slots, turns = trio.CapacityLimiter(clients), dict[int, Turn]()

    async def turn(number: int, body: dict[str, Any]) -> None:
        async with slots:
            turns[number] = await ask(http, url, body)

    async with trio.open_nursery() as nursery:
        for number, body in enumerate(bodies):
            nursery.start_soon(turn, number, body)
    return [turns[number] for number in range(len(bodies))]


async def ask(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Turn:
    """Ask for one turn. Only if `body` asks for a stream does the first token have a time of its own."""
    content, sent = json.dumps(body).encode(), trio.current_time()
    path = f"{url}/v1/chat/completions"
    if not body.get("stream"):
        answer = await http.post(path, content=content, headers=_HEADERS)
        answer.raise_for_status()
        seconds = trio.current_time() - sent
        return _turn(seconds, seconds, answer.json()["usage"], ())
    first, tokens, usage, events = 0.0, list[str](), dict[str, Any](), EventLines()
    async with http.stream("POST", path, content=content, headers=_HEADERS) as stream:
        stream.raise_for_status()
        async for data in stream.aiter_bytes():
            for payload in events.data(data):
                event = {} if payload == b"[DONE]" else json.loads(payload)
                usage = event.get("usage") or usage
                for choice in event.get("choices") or ():
                    new = (choice.get("logprobs") or {}).get("content") or ()
                    if new and not tokens:
                        first = trio.current_time() - sent
                    tokens += [entry["token"] for entry in new]
    return _turn(trio.current_time() - sent, first, usage, tuple(tokens))


def _turn(seconds: float, first: float, usage: dict[str, Any], tokens: tuple[str, ...]) -> Turn:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Turn(seconds, first, int(usage["prompt_tokens"]), int(cached), tokens)
