"""Sessions that come, grow and leave, each with words, names and schemas of its own that no earlier one
had."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import httpx

from loadtests.conversations import Conversation, text_of

_CHAIN_EVERY, _HOLD_EVERY, _PIN_EVERY, _SCHEMA_EVERY = 4, 8, 64, 4
"""One in this many of the sessions that stay is a chain of stored responses, and so on; the others are short
chats."""
_LONG_TURNS, _SHORT_TURNS = 3, 2
_SHORT_WORDS = 60
_HELD = {200, 409}
"""Statuses that a hold may have: 409 where everything is held, so that there is no room."""


@dataclass(frozen=True, slots=True)
class Guests:
    """What the sessions are like. `tokens`: the length of a long session's prompt; `computed_tokens`: that of
    the part which the engine computes; the rest is only tokenized. `schemas`: whether the engine can hold
    answers to a schema."""

    tokens: int
    computed_tokens: int
    schemas: bool
    stays_every: int = 8
    """One session in this many has more than a short turn. The others only fill what is kept by session name:
    it is small, and full only after tens of thousands."""
    long_every: int = 32
    """One in this many of those is long."""
    seed: int = 0


class Visits:
    """Sends sessions' requests, and counts them in `counts`. It raises httpx.HTTPStatusError for an error
    instead of an answer."""

    def __init__(self, http: httpx.AsyncClient, url: str, guests: Guests, words_per_token: float) -> None:
        self._http = http
        self._url = url
        self._guests = guests
        self._words_per_token = words_per_token
        self.counts: Counter[str] = Counter(sessions=0, responses=0, schemas=0)

    async def visit(self, number: int) -> None:
        """Carry out one session, from its first turn to its last."""
        chance = random.Random(f"{self._guests.seed} {number}")
        headers = {"x-session-id": f"soak {number}", "x-soak-tenant": f"tenant {number}"}
        if number % self._guests.stays_every:
            await self._post("/v1/chat/completions", headers, _passing(chance))
        else:
            await self._stay(number // self._guests.stays_every, chance, headers)
        self.counts["sessions"] += 1

    async def _stay(self, number: int, chance: random.Random, headers: dict[str, str]) -> None:
        if number % self._guests.long_every == 0:
            await self._long(chance, headers)
        elif number % _CHAIN_EVERY == 1:
            await self._chain(chance, headers)
        else:
            await self._short(chance, headers, number)

    async def _long(self, chance: random.Random, headers: dict[str, str]) -> None:
        guests = self._guests
        whole = self._conversation(chance, guests.tokens)
        part = whole if guests.computed_tokens >= guests.tokens else None
        part = part or self._conversation(chance, guests.computed_tokens)
        for _ in range(_LONG_TURNS):
            if part is not whole:
                await self._post("/tokenize", headers, whole.body())
                whole.grow()
            await self._post("/v1/chat/completions", headers, part.body(max_tokens=4, temperature=0))
            part.grow()

    def _conversation(self, chance: random.Random, tokens: int) -> Conversation:
        words = round(tokens * self._words_per_token)
        return Conversation(chance, text_of(chance, _SHORT_WORDS), words, words // 100)

    async def _chain(self, chance: random.Random, headers: dict[str, str]) -> None:
        before = None
        for _ in range(_SHORT_TURNS):
            body: dict[str, Any] = {
                "input": text_of(chance, _SHORT_WORDS),
                "max_output_tokens": 4,
                "store": True,
            }
            if before is not None:
                body["previous_response_id"] = before
            before = (await self._post("/v1/responses", headers, body))["id"]
            self.counts["responses"] += 1

    async def _short(self, chance: random.Random, headers: dict[str, str], number: int) -> None:
        messages = [{"role": "user", "content": text_of(chance, _SHORT_WORDS)}]
        body: dict[str, Any] = {"messages": messages, "max_tokens": 4, "temperature": 0}
        body["tools"] = [_tool(chance)]
        if self._guests.schemas and number % _SCHEMA_EVERY == 2:
            schema = {"name": "answer", "schema": _tool(chance)["function"]["parameters"], "strict": True}
            body |= {"response_format": {"type": "json_schema", "json_schema": schema}, "max_tokens": 8}
            del body["tools"]
            self.counts["schemas"] += 1
        for _ in range(_SHORT_TURNS):
            answer = await self._post("/v1/chat/completions", headers, body)
            messages.append(
                {"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""}
            )
            messages.append({"role": "user", "content": text_of(chance, _SHORT_WORDS)})
        if number % _HOLD_EVERY == 3:
            await self._post("/v1/cache?keep_alive=30", headers, {"messages": messages}, _HELD)
        if number % _PIN_EVERY == 6:
            pinned = await self._post("/v1/cache?keep_alive=-1", headers, {"messages": messages}, _HELD)
            if "pin" in pinned:
                await self._http.delete(f"{self._url}/v1/cache", params={"pin": pinned["pin"]})

    async def _post(
        self, path: str, headers: dict[str, str], body: dict[str, Any], accepted: Collection[int] = ()
    ) -> dict[str, Any]:
        answer = await self._http.post(self._url + path, json=body, headers=headers)
        if answer.status_code not in accepted:
            answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


def _passing(chance: random.Random) -> dict[str, Any]:
    message = {"role": "user", "content": text_of(chance, 4)}
    return {"messages": [message], "max_tokens": 1, "temperature": 0}


def _tool(chance: random.Random) -> dict[str, Any]:
    name = "_".join(text_of(chance, 3).split())
    properties = {f"{name}_{word}": {"type": "string"} for word in text_of(chance, 4).split()}
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    parameters["required"] = list(properties)
    return {
        "type": "function",
        "function": {"name": name, "description": text_of(chance, 8), "parameters": parameters},
    }
