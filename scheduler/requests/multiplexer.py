"""Routes what the engine says to the request it concerns, and forgets a request when it has retired.

All of it is synchronous and runs in the link reader's task: it waits for nobody. An id leaves the table
because of one message, `Retired`, or because there is no engine that holds it. Whoever still waits for an
answer when the engine dies stays in the table, for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, assert_never

import structlog

from scheduler.errors import (
    DeadlineExceeded,
    InvalidRequest,
    LinkError,
    RequestFailed,
    SchedulerError,
)
from scheduler.events import FinishReason
from scheduler.link.messages import Cancel, PrefillOut, Retired, StepOutput, ToEngine, TokenOut
from scheduler.requests.lifecycle import Event, State
from scheduler.requests.record import StreamRecord

_log = structlog.get_logger("multiplexer")


class RequestObserver(Protocol):
    """Sees what happens to requests. It never raises: a fault in telemetry must not end a stream."""

    def submitted(self, record: StreamRecord, now: float) -> None: ...
    def resumed(self) -> None: ...
    def token(self, record: StreamRecord, now: float) -> None:
        """Before `record` counts it."""
        ...

    def late_token(self) -> None:
        """One for a request that nobody reads any more."""
        ...

    def cancelled(self, seconds: float) -> None:
        """From the Cancel sent to its Retired received."""
        ...


class Multiplexer:
    """The requests that the engine holds, by id.

    `send` takes messages for the engine; `on_retired` is told of every record that leaves.
    """

    def __init__(
        self,
        send: Callable[[ToEngine], None],
        on_retired: Callable[[StreamRecord], None],
        observer: RequestObserver,
        clock: Callable[[], float],
    ) -> None:
        self._send = send
        self._on_retired = on_retired
        self._observer = observer
        self._clock = clock
        self._records: dict[int, StreamRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter(self._records.values())

    def submit(self, record: StreamRecord) -> None:
        """Hand a queued request to the engine."""
        record.move(Event.DISPATCH)
        record.dispatched_at = self._clock()
        self._observer.submitted(record, record.dispatched_at)
        self._records[record.request_id] = record
        self._hand_over(record, record.submit_message)

    @property
    def awaiting_engine(self) -> bool:
        """Whether some wait for another engine, or for their turn with it."""
        return any(record.state is State.AWAITING_ENGINE for record in self._records.values())

    def resubmit(self, record: StreamRecord) -> None:
        """Hand one that an engine's death has left over to the next engine."""
        record.move(Event.DISPATCH)
        self._observer.resumed()
        self._hand_over(record, record.resubmit_message)

    def _hand_over(self, record: StreamRecord, message: Callable[[], ToEngine]) -> None:
        try:
            self._send(message())
        except Exception as error:
            # The engine has never heard of it, so no Retired will come to give back its credit.
            _log.exception("submit_failed", request=record.prepared.request.public_id)
            record.fail(RequestFailed(f"the request could not be sent to the engine: {error}"))
            self._drop(record, Event.RETIRE)

    def cancel(self, record: StreamRecord) -> None:
        """Nobody needs this request's answer any more; it is gone when its Retired comes."""
        if record.state is State.AWAITING_ENGINE:
            self._drop(record, Event.CANCEL)
        elif record.state not in (State.CANCELLING, State.RETIRED):
            record.move(Event.CANCEL)
            record.cancel_sent_at = self._clock()
            self._send(Cancel(record.request_id))

    def expire(self, record: StreamRecord, error: DeadlineExceeded) -> bool:
        """Its time is up: `error` is its final event, and it is gone when its Retired comes. False where it
        has its final event already."""
        if not record.listening:
            return False
        record.fail(error)
        if record.state is State.AWAITING_ENGINE:
            self._drop(record, Event.EXPIRE)
        else:
            record.move(Event.EXPIRE)
            record.cancel_sent_at = self._clock()
            self._send(Cancel(record.request_id))
        return True

    def route(self, output: StepOutput) -> None:
        """Deliver one step. A failure in one request's text ends that request and no other.

        Raises LinkError for what a working engine cannot say.
        """
        now = self._clock()
        ends = {retired.request_id: retired for retired in output.retired}
        for prefill in output.prefills:
            self._route_prefill(prefill)
        for token in output.tokens:
            end = ends.get(token.request_id)
            self._route_token(token, end is not None and end.reason == "stop", now)
        for retired in output.retired:
            self._route_retired(retired)

    def _held(self, request_id: int) -> StreamRecord:
        try:
            return self._records[request_id]
        except KeyError:
            raise LinkError(f"the engine speaks of request {request_id}, which it does not have") from None

    def _route_prefill(self, prefill: PrefillOut) -> None:
        record = self._held(prefill.request_id)
        if record.listening:
            record.put_prefill(prefill.done, prefill.total, prefill.cached)

    def _route_token(self, told: TokenOut, is_stop_token: bool, now: float) -> None:
        record = self._held(told.request_id)
        if not record.listening:
            self._observer.late_token()
            return
        self._observer.token(record, now)
        if is_stop_token:
            record.count_token(told.token, now)
            return
        try:
            record.put_tokens((told.token,), now, () if told.logprobs is None else (told.logprobs,))
        except Exception as error:
            self._fail_answer(record, error)
            self.cancel(record)
            return
        if record.pipeline.stopped:
            record.finish(FinishReason.STOP)
            self.cancel(record)

    def _route_retired(self, retired: Retired) -> None:
        record = self._held(retired.request_id)
        del self._records[retired.request_id]
        if record.cancel_sent_at is not None:
            self._observer.cancelled(self._clock() - record.cancel_sent_at)
        if record.listening:
            try:
                self._finish(record, retired)
            except Exception as error:  # In the text that was held back until now.
                self._fail_answer(record, error)
        record.move(Event.RETIRE)
        self._on_retired(record)

    @staticmethod
    def _fail_answer(record: StreamRecord, error: Exception) -> None:
        if isinstance(error, SchedulerError):
            # What the model wrote cannot be read: told to the client, and nothing is wrong with us.
            record.fail(error)
            return
        _log.exception("answer_failed", request=record.prepared.request.public_id)
        record.fail(RequestFailed(f"the answer could not be decoded: {error}"))

    def _finish(self, record: StreamRecord, retired: Retired) -> None:
        match retired.reason:
            case "stop":
                record.finish(FinishReason.STOP)
            case "length":
                record.finish(FinishReason.LENGTH)
            case "refused":
                record.fail(InvalidRequest(retired.detail))
            case "failed":
                record.fail(RequestFailed(retired.detail))
            case "cancelled":
                record.fail(RequestFailed("the engine cancelled a request that nobody had cancelled"))
            case _:
                assert_never(retired.reason)

    def lose_all(self) -> None:
        """The engine is gone. Whoever was still to be answered waits for the next one; others have left."""
        now = self._clock()
        for record in list(self._records.values()):
            if record.state is State.CANCELLING:
                self._drop(record, Event.RETIRE)
            elif record.state is not State.AWAITING_ENGINE:
                record.move(Event.LOSE)
                record.lost_at = now if record.lost_at is None else record.lost_at
                if (ending := record.ending) is not None:
                    self._end_by_itself(record, ending)

    def _end_by_itself(self, record: StreamRecord, ending: FinishReason) -> None:
        try:
            record.finish(ending)
        except Exception as error:  # In the text that was held back until now.
            self._fail_answer(record, error)
        self._drop(record, Event.RETIRE)

    def give_up(self, record: StreamRecord, error: SchedulerError) -> None:
        """One that is awaiting_engine ends here."""
        record.fail(error)
        self._drop(record, Event.RETIRE)

    def end_all(self, error: SchedulerError) -> None:
        """Every request ends now with `error`, and the engine is told where one has it."""
        for record in list(self._records.values()):
            if record.listening:
                record.fail(error)
                self.cancel(record)

    def _drop(self, record: StreamRecord, event: Event) -> None:
        """It leaves the table, for no engine has it."""
        del self._records[record.request_id]
        record.move(event)
        self._on_retired(record)
