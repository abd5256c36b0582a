"""Conversations: responses go on from them by one id, and none of their items is lost or there twice."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import trio_test

from api.access.identity import Identity
from api.answers.errors import ApiFailure
from api.dialects.responses.running import RunningResponses
from api.dialects.responses.store import ResponseStore
from tests.api.client import client_of, refused
from tests.api.dialects.test_background import slow, status
from tests.api.dialects.test_chat_tools import HERMES, SAID
from tests.api.dialects.test_official_dialects import FUNCTION, gpt
from tests.api.dialects.test_stored_items import prompts
from tests.examples import examples
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running


def user(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


async def made(client: httpx.AsyncClient, *texts: str, **options: Any) -> str:
    """Make a conversation with these texts of its user."""
    body = {"items": [user(text) for text in texts]}
    answer = await client.post("/v1/conversations", json=body, **options)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def texts(client: httpx.AsyncClient, conversation: str) -> list[str]:
    listed = await client.get(f"/v1/conversations/{conversation}/items?order=asc&limit=100")
    return [item["content"][0]["text"] for item in listed.json()["data"]]


@trio_test
async def test_the_official_client_has_a_conversation(autojump_clock: trio.testing.MockClock) -> None:
    """Made, changed, continued by two responses, whole and streamed, listed in pages, and deleted."""
    launcher = Playback(SAID, "It is noon.")
    scheduler = make_scheduler(launcher, answer_format=HERMES)
    async with running(scheduler), gpt(scheduler) as client:
        talk = await client.conversations.create(items=[user("a")], metadata={"topic": "time"})
        assert (talk.object, talk.metadata) == ("conversation", {"topic": "time"})
        assert await client.conversations.retrieve(talk.id) == talk
        changed = await client.conversations.update(talk.id, metadata={"topic": "clocks"})
        assert changed == talk.model_copy(update={"metadata": {"topic": "clocks"}})

        first = await client.responses.create(
            model="tiny", conversation=talk.id, input="b", tools=[FUNCTION], instructions="Be kind."
        )
        assert first.conversation is not None
        assert first.conversation.id == talk.id
        call: Any = first.output[-1]
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
        async with client.responses.stream(
            model="tiny", conversation={"id": talk.id}, input=[result]
        ) as events:
            second = await events.get_final_response()
        assert second.conversation == first.conversation
        assert second.output_text == "It is noon."

        page = await client.conversations.items.list(talk.id, order="asc", limit=3)
        found: list[Any] = [item async for item in page]
        kinds = ["message", "message", "reasoning", "message", "function_call", "function_call_output"]
        assert [item.type for item in found] == [*kinds, "message"]
        assert [item.id for item in found[2:5]] == [item.id for item in first.output]
        newest: list[Any] = [item async for item in client.conversations.items.list(talk.id, limit=2)]
        assert newest == found[::-1]
        for one in found:
            assert await client.conversations.items.retrieve(one.id, conversation_id=talk.id) == one
        gone = await client.conversations.delete(talk.id)
        assert (gone.id, gone.object, gone.deleted) == (talk.id, "conversation.deleted", True)
        assert (await client.responses.retrieve(second.id)).output_text == second.output_text
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(talk.id)
    asked, after = prompts(launcher)
    assert asked.endswith("<user>a\n<user>b\n<assistant>")
    assert "Be kind." in asked
    assert "Be kind." not in after, "instructions are of one response"
    for word in ("<user>a\n<user>b", "I look.", "12"):
        assert word in after


@given(st.data())
@settings(max_examples=examples(10), deadline=None)
def test_a_conversation_is_a_list(data: st.DataObject) -> None:
    """Whatever is added, answered, deleted and changed in whatever order: it has what the list has."""
    steps = data.draw(st.lists(st.sampled_from(["add", "answer", "delete", "change"]), max_size=8))

    async def check() -> None:
        launcher = Playback(*[f"said {number}" for number in range(len(steps))], "end")
        async with running(scheduler := make_scheduler(launcher)), client_of(scheduler) as client:
            talk = await made(client, "begin")
            path, known = f"/v1/conversations/{talk}", ["begin"]
            for number, step in enumerate(steps):
                match step:
                    case "add":
                        body: Any = {"items": [user(f"add {number}"), user(f"more {number}")]}
                        await client.post(f"{path}/items", json=body)
                        known += [f"add {number}", f"more {number}"]
                    case "answer":
                        body = {"input": f"ask {number}", "conversation": talk, "store": number % 2 == 0}
                        answer = await client.post("/v1/responses", json=body)
                        known += [f"ask {number}", answer.json()["output"][0]["content"][0]["text"]]
                    case "delete" if known:
                        items = (await client.get(f"{path}/items?order=asc&limit=100")).json()["data"]
                        place = data.draw(st.integers(0, len(known) - 1))
                        await client.delete(f"{path}/items/{items[place]['id']}")
                        del known[place]
                    case _:
                        await client.post(path, json={"metadata": {"n": str(number)}})
                assert await texts(client, talk) == known
            counted = {"input": "end", "conversation": talk}
            assert (await client.post("/v1/responses", json=counted)).status_code == 200
        last = prompts(launcher)[-1]
        assert [last.count(text) for text in known] == [1] * len(known)

    trio.run(check, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("stream", [False, True])
@trio_test
async def test_one_response_at_a_time(stream: bool, autojump_clock: trio.testing.MockClock) -> None:
    """The second is refused as OpenAI refuses it, and the conversation is free when the first is over,
    however that ends. What is added meanwhile is kept."""
    async with running(scheduler := slow(max_slots=4)), client_of(scheduler) as client:
        talk = await made(client, "a")
        body: dict[str, Any] = {"input": "b", "conversation": talk, "max_output_tokens": 20, "stream": stream}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.post("/v1/responses", json=body))
            await trio.sleep(3)
            for other in (
                body,
                {**body, "stream": not stream},
                {**body, "stream": False, "background": True},
            ):
                answer = await client.post("/v1/responses", json=other)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (400, "conversation_locked"), error
            await client.post(f"/v1/conversations/{talk}/items", json={"items": [user("c")]})
            free = await client.post("/v1/responses", json={**body, "conversation": await made(client)})
            assert free.status_code == 200
        assert len(kept := await texts(client, talk)) == 4
        assert (kept[:3], len(kept[3].split())) == (["a", "c", "b"], 20)

        with trio.move_on_after(5):
            await client.post("/v1/responses", json=body)
        assert await texts(client, talk) == kept, "its client left"
        assert (await client.post("/v1/responses", json=body)).status_code == 200
        assert len(await texts(client, talk)) == 6


@trio_test
async def test_in_the_background(autojump_clock: trio.testing.MockClock) -> None:
    """A cancelled response adds what it has, as its client finds it stored; one that failed adds nothing."""
    async with running(scheduler := slow(max_slots=1)), client_of(scheduler) as client:
        talk = await made(client, "a")
        body: dict[str, Any] = {"conversation": talk, "background": True, "max_output_tokens": 20_000}
        begun = (await client.post("/v1/responses", json={**body, "input": "b"})).json()["id"]
        await trio.sleep(10)
        cancelled = (await client.post(f"/v1/responses/{begun}/cancel")).json()
        kept = await texts(client, talk)
        assert kept == ["a", "b", cancelled["output"][0]["content"][0]["text"]]
        late = (await client.post("/v1/responses", json={**body, "input": "c", "timeout": 5})).json()["id"]
        await trio.sleep(20)
        assert await status(client, late) == "failed"
        assert await texts(client, talk) == kept


@trio_test
async def test_what_comes_at_once_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """Bodies that are read in threads, so that all of them find the conversation as it was."""
    async with running(scheduler := make_scheduler(Playback())), client_of(scheduler) as client:
        talk = await made(client, *(f"{number} at first" for number in range(40)))
        path = f"/v1/conversations/{talk}/items"
        first = (await client.get(f"{path}?order=asc")).json()["data"]
        async with trio.open_nursery() as nursery:
            for tenth in range(1, 4):
                body = {"items": [user(f"{tenth} of ten, {number}") for number in range(30)]}
                nursery.start_soon(lambda body: client.post(path, json=body), body)
                nursery.start_soon(client.delete, f"{path}/{first[tenth]['id']}")
        listed = [*await texts(client, talk), *await page_behind(client, talk)]
    assert len(listed) == len(set(listed)) == 40 - 3 + 90


async def page_behind(client: httpx.AsyncClient, talk: str) -> list[str]:
    """Return the texts behind the first 100."""
    path = f"/v1/conversations/{talk}/items?order=asc&limit=100"
    last = (await client.get(path)).json()["last_id"]
    listed = await client.get(f"{path}&after={last}")
    return [item["content"][0]["text"] for item in listed.json()["data"]]


def test_a_conversation_that_changed_while_its_response_was_prepared_is_locked() -> None:
    responses = RunningResponses()
    with pytest.raises(ApiFailure, match="Another response"), responses.holding("t", "conv_a", lambda: False):
        pass
    with responses.holding("t", "conv_a", lambda: True), responses.holding("u", "conv_a", lambda: True):
        pass


@trio_test
async def test_one_that_is_deleted_meanwhile_stays_so(autojump_clock: trio.testing.MockClock) -> None:
    async with running(scheduler := slow()), client_of(scheduler) as client:
        talk = await made(client, "a")
        body = {"input": "b", "conversation": talk, "max_output_tokens": 9}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.post("/v1/responses", json=body))
            await trio.sleep(3)
            assert (await client.delete(f"/v1/conversations/{talk}")).json()["deleted"]
        assert (await client.get(f"/v1/conversations/{talk}")).status_code == 404


@trio_test
async def test_it_is_refused_by_name(autojump_clock: trio.testing.MockClock) -> None:
    """An id is of one kind, and the tenants do not see each other's."""
    identity = Identity("x-tenant")
    scheduler = make_scheduler(Playback("one", "two"))
    async with running(scheduler), client_of(scheduler, identity=identity) as client:
        mine, other = {"x-tenant": "one"}, {"x-tenant": "two"}
        talk = await made(client, "a", headers=mine)
        body: dict[str, Any] = {"input": "a", "conversation": talk}
        response = (await client.post("/v1/responses", json=body, headers=mine)).json()["id"]
        path = f"/v1/conversations/{talk}"
        item = (await client.get(f"{path}/items", headers=mine)).json()["data"][0]["id"]
        elsewhere = f"conv_{'0' * 48}"
        for asked, code in (
            (client.post("/v1/responses", json=body, headers=other), "conversation_not_found"),
            (client.get(path, headers=other), "conversation_not_found"),
            (client.get(f"{path}/items/{item}", headers=other), "conversation_not_found"),
            (client.delete(f"{path}/items/{item}", headers=other), "conversation_not_found"),
            (client.post(f"{path}/items", json={"items": []}, headers=other), "conversation_not_found"),
            (client.delete(path, headers=other), "conversation_not_found"),
            (client.get(f"/v1/conversations/{response}", headers=mine), "conversation_not_found"),
            (client.get(f"/v1/conversations/{elsewhere}", headers=mine), "conversation_not_found"),
            (client.get(f"/v1/responses/{talk}", headers=mine), "response_not_found"),
            (client.delete(f"/v1/responses/{talk}", headers=mine), "response_not_found"),
            (client.get(f"{path}/items/msg_no", headers=mine), "item_not_found"),
        ):
            answer = await asked
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, code), answer.text
        for wrong, word in (
            ({**body, "previous_response_id": response}, "mutually_exclusive_parameters"),
            ({"input": "a", "previous_response_id": talk}, "previous_response_not_found"),
        ):
            answer = await client.post("/v1/responses", json=wrong, headers=mine)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, word)
        empty = await made(client, headers=mine)
        answer = await client.post("/v1/responses", json={"conversation": empty}, headers=mine)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
        more = await client.post(f"{path}/items", json={"items": []}, headers=mine)
        assert (more.status_code, more.json()["data"]) == (200, [])


def test_no_compaction_takes_its_items() -> None:
    error = refused("/v1/responses", {"input": [{"type": "compaction_trigger"}], "conversation": "conv_a"})
    assert "conversation" in error["message"]


@trio_test
async def test_its_bounds_are_the_stores(autojump_clock: trio.testing.MockClock) -> None:
    """It counts as a response does. What does not fit is refused, or is gone by name, never without a
    turn."""
    scheduler = make_scheduler(Playback("x" * 3000, "two", "three"))
    store = ResponseStore(2, 9000)
    async with running(scheduler), client_of(scheduler, responses=store) as client:
        talk = await made(client, "a")
        path = f"/v1/conversations/{talk}"
        answer = await client.post(f"{path}/items", json={"items": [user("b" * 5000)]})
        assert (answer.status_code, "larger than" in answer.text) == (400, True), answer.text
        assert await texts(client, talk) == ["a"]
        assert (await client.post("/v1/conversations", json={"items": [user("b" * 9000)]})).status_code == 400
        await client.post(f"{path}/items", json={"items": [user("c" * 1000)]})
        body = {"input": "d", "conversation": talk, "store": False}
        assert (await client.post("/v1/responses", json=body)).status_code == 200
        assert (await client.get(path)).status_code == 404, "too large with its answer"
        first, second = await made(client), await made(client)
        await made(client)
        for one, there in ((first, 404), (second, 200)):
            assert (await client.get(f"/v1/conversations/{one}")).status_code == there
    async with (
        running(scheduler := make_scheduler(Playback())),
        client_of(scheduler, responses=ResponseStore(0, 1 << 20)) as client,
    ):
        answer = await client.post("/v1/conversations", json={})
        assert (answer.status_code, "stores no conversations" in answer.text) == (400, True)
