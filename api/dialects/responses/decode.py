"""Decode an OpenAI responses body into a `GenerationRequest`, and what is kept of it for its answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from api.access.identity import ANYBODY, Caller
from api.answers.answer_blocks import Block
from api.dialects.openai.decode import chat_prompt, common
from api.dialects.responses.conversation import input_messages, output_messages, with_instructions
from api.dialects.responses.envelope import Envelope, Status
from api.dialects.responses.items import AddedTools, Result
from api.dialects.responses.schema import CreateResponse
from api.dialects.responses.store import Referred, ResponseStore, Stored, Turn, encoded, messages_json, new_id
from api.dialects.responses.tools import offered, offered_name, readable_tools, sent
from api.options.model_defaults import NEUTRAL, Defaults
from scheduler.errors import InvalidRequest
from scheduler.request import PRIORITIES, GenerationRequest


@dataclass(frozen=True, slots=True)
class Asked:
    """A decoded body."""

    requests: list[GenerationRequest]
    """One, until the scheduler has it."""
    envelope: Envelope
    before: Stored | None
    """What the response continues in the store."""
    since: Turn
    """What the client sent since then."""
    is_kept: bool

    def remember(
        self, store: ResponseStore, tenant: str, status: Status, body_json: bytes, blocks: list[Block]
    ) -> None:
        """Store the response if it is wanted."""
        if self.is_kept:
            answer = Turn(messages_json(list(output_messages(blocks))))
            public_id, background = self.envelope.public_id, self.envelope.background
            store.put(tenant, public_id, body_json, self.before, self.since, answer, background=background)

    @property
    def kept_bytes(self) -> int:
        """Return how much the answer keeps of its body, and of what it continues: the store may lose that."""
        before = 0 if self.before is None else self.before.charged_bytes
        return before + self.envelope.bytes + sum(map(len, self.since.texts))


def decoded(
    body: CreateResponse,
    before: Stored | None,
    referred: Referred,
    model: str = "",
    defaults: Defaults = NEUTRAL,
    caller: Caller = ANYBODY,
    adapter: str = "",
) -> Asked:
    """Decode the body. `before` is the conversation that it continues; `defaults` of the model's name apply
    to what it omits."""
    since = list(input_messages(body.input, referred.find))
    messages = [*(before.messages() if before else ()), *since]
    if not messages:
        raise InvalidRequest("input: the conversation is empty: send input", param="input")
    added = [tool for item in body.input if isinstance(item, AddedTools | Result) for tool in item.tools]
    earlier = map(readable_tools, before.added() if before else ())
    by_name = offered(body.tools, [*earlier, added])
    tools = [offer.tool for offer in by_name.values()]
    whole = with_instructions(body.instructions, messages)
    request = GenerationRequest(
        public_id=new_id(),
        prompt=chat_prompt(body, whole, tools, defaults, partial(offered_name, by_name)),
        top_logprobs=body.wanted_logprobs,
        **common(body, defaults, caller, adapter),
    )
    if body.background and "priority" not in body.model_fields_set:
        request = replace(request, priority=PRIORITIES[-1])
    turn = Turn(b"")
    if body.remembers:
        turn = Turn(messages_json(since), encoded([sent(tool) for tool in added]) if added else b"")
    called = {name: offer.called for name, offer in by_name.items()}
    envelope = Envelope.of(body, request.public_id, model, request.sampling, called)
    return Asked([request], envelope, before, turn, body.remembers)
