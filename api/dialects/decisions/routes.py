"""`/v1/decisions` and `/v1/systemone`: one prefill for each question, behind one state."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.access.identity import Caller
from api.answers.blocks import all_finished
from api.dialects.decisions.encode import decision_object, system_one_object
from api.dialects.decisions.questions import Distribution, Question, Read, asked
from api.dialects.decisions.schema import DecisionRequest, SystemOneRequest
from api.dialects.json_route import BodyWorkOf, JsonRoute, Validated
from api.dialects.responses.conversation import input_messages, with_instructions
from api.dialects.responses.items import InputItem
from api.served_models import Served, ServedModels
from scheduler.errors import InvalidRequest
from scheduler.events import Finished
from scheduler.request import ChatPrompt, GenerationRequest, Message, Reasoning


def decision_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["decisions"], route_class=JsonRoute)

    @router.post("/v1/decisions", response_model=None)
    async def decisions(body: Validated[DecisionRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """How likely each answer to each question about the input is."""
        served = models.check(body.model)
        messages = await work.decode(body, _conversation)
        state = _State(served, caller, messages, body.timeout, body.priority)
        ends, found = await state.answers([one.question for one in body.questions])
        return work.response(decision_object(served.name, body.questions, found, ends), repeats=True)

    @router.post("/v1/systemone", response_model=None)
    async def system_one(body: Validated[SystemOneRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """How likely each answer to each question about the state is."""
        served = models.check(body.model)
        messages: tuple[Message, ...] = ({"role": "user", "content": body.state},)
        state = _State(served, caller, messages, body.timeout, body.priority)
        ends, found = await state.answers([one.question for one in body.questions.values()])
        return work.response(system_one_object(served.name, body.questions, found, ends), repeats=True)

    return router


def _conversation(body: DecisionRequest) -> tuple[Message, ...]:
    return with_instructions(None, list(input_messages(body.input, _not_stored)))


def _not_stored(item_id: str) -> InputItem:
    raise InvalidRequest(f"input: an item is only referred to: {item_id!r}", param="input")


@dataclass(frozen=True, slots=True)
class _State:
    """What all questions of a body are about, and who asks them."""

    served: Served
    caller: Caller
    messages: tuple[Message, ...]
    timeout: float | None
    priority: int

    async def answers(self, questions: Sequence[Question]) -> tuple[list[Finished], list[Distribution]]:
        """Return the end of each prefill, and each question's answer."""
        reads = [list(question.reads()) for question in questions]
        every = [(question, read) for question, its in zip(questions, reads, strict=True) for read in its]
        public_id = f"decision-{secrets.token_hex(12)}"
        fields = self.caller.fields(self.served.adapter, self.timeout, self.priority)

        async def made(start: int, end: int) -> list[GenerationRequest]:
            return [decision_request(public_id, self.messages, *one, fields) for one in every[start:end]]

        ends = await all_finished(self.served.scheduler, len(every), made)
        vectors = iter([end.vector for end in ends])
        found = [
            question.probabilities(list(islice(vectors, len(its))))
            for question, its in zip(questions, reads, strict=True)
        ]
        return ends, found


def decision_request(
    public_id: str, messages: Sequence[Message], question: Question, read: Read, fields: dict[str, Any]
) -> GenerationRequest:
    """`fields`: the caller's."""
    return GenerationRequest(
        public_id=public_id,
        prompt=ChatPrompt(asked(messages, question), reasoning=Reasoning(enabled=False)),
        max_tokens=0,
        labels=read.labels,
        begun=read.begun,
        **fields,
    )
