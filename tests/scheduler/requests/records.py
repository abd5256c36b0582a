"""Records as admission makes them, for tests of the parts that use them."""

from __future__ import annotations

from scheduler.answer.pipeline import AnswerPipeline
from scheduler.events import Failed, Finished, StreamEvent, TextDelta
from scheduler.prefix_estimate import block_hashes
from scheduler.prepared import Prepared
from scheduler.requests.record import StreamRecord
from scheduler.shared.messages import Submit
from scheduler.shared.token_ids import compact
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer
from tests.fakes.scheduling import ask


def make_record(
    request_id: int = 1,
    *,
    prompt: list[int] | None = None,
    text: str = "hello",
    stop: tuple[str, ...] = (),
    arrived_at: float = 0.0,
    tenant: str = "",
    session: str | None = None,
    timeout_seconds: float | None = None,
    max_tokens: int = 8,
) -> StreamRecord:
    request = ask(
        text,
        stop=stop,
        tenant=tenant,
        session=session,
        timeout_seconds=timeout_seconds,
    )
    tokens = compact(prompt or [1, 2, 3])
    submit = Submit(request_id, tokens, max_tokens, (EOS,), request.sampling, session=session)
    pipeline = AnswerPipeline(ByteTokenizer().detokenizer(), stop)
    prepared = Prepared(request, submit, lambda: [pipeline], block_hashes(tokens, request.cache_salt))
    return StreamRecord(prepared, submit, pipeline, arrived_at)


def events_of(record: StreamRecord) -> list[StreamEvent]:
    """Everything that waits in the record's mailbox."""
    events: list[StreamEvent] = []
    while (event := record.mailbox.take_nowait()) is not None:
        events.append(event)
    return events


def text_of(events: list[StreamEvent]) -> str:
    return "".join([event.text for event in events if isinstance(event, TextDelta)])


def finals_of(events: list[StreamEvent]) -> list[Finished | Failed]:
    return [event for event in events if isinstance(event, Finished | Failed)]
