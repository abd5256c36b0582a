"""`/v1/decisions` and `/v1/systemone`: one prefill for each question, behind one state."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.responses import Response

from api.access.auth import CallerOf
from api.access.identity import Caller
from api.dialects.decisions.encode import decision_object, system_one_object
from api.dialects.decisions.questions import Distribution, Question, asked
from api.dialects.decisions.schema import DecisionRequest, SystemOneRequest
from api.dialects.json_route import BodyWork, BodyWorkOf, JsonRoute, Validated
from api.dialects.readings import ReadingRequest, read
from api.dialects.responses.conversation import input_messages, with_instructions
from api.dialects.responses.items import InputItem
from api.served_models import Served, ServedModels
from scheduler.errors import InvalidRequest
from scheduler.events import Finished
from scheduler.request import Message


def decision_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["decisions"], route_class=JsonRoute)

    @router.post("/v1/decisions", response_model=None)
    async def decisions(body: Validated[DecisionRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """How likely each answer to each question about the input is."""
        served = models.check(body.model)
        messages = await work.decode(body, _conversation)
        questions = [one.question for one in body.questions]
        ends, found = await _answers(served, caller, body, work, messages, questions, "input")
        return work.response(decision_object(served.name, body.questions, found, ends), repeats=True)

    @router.post("/v1/systemone", response_model=None)
    async def system_one(body: Validated[SystemOneRequest], caller: CallerOf, work: BodyWorkOf) -> Response:
        """How likely each answer to each question about the state is."""
        served = models.check(body.model)
        messages: tuple[Message, ...] = ({"role": "user", "content": body.state},)
        questions = [one.question for one in body.questions.values()]
        ends, found = await _answers(served, caller, body, work, messages, questions, "state")
        return work.response(system_one_object(served.name, body.questions, found, ends), repeats=True)

    return router


async def _answers(
    served: Served,
    caller: Caller,
    body: ReadingRequest,
    work: BodyWork,
    messages: Sequence[Message],
    questions: Sequence[Question],
    field: str,
) -> tuple[list[Finished], list[Distribution]]:
    """Return the end of each prefill, and each question's answer."""
    reads = [(question, one) for question in questions for one in question.reads()]
    _, ends = await read(served, caller, body, work, reads, lambda pair: asked(messages, *pair), field)
    vectors = iter([end.vector for end in ends])
    return ends, [question.probabilities(vectors) for question in questions]


def _conversation(body: DecisionRequest) -> tuple[Message, ...]:
    return with_instructions(None, list(input_messages(body.input, _not_stored)))


def _not_stored(item_id: str) -> InputItem:
    raise InvalidRequest(f"input: an item is only referred to: {item_id!r}", param="input")
