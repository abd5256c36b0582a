"""Route an engine's output to its requests, and forget a request when it retires.

All of it is synchronous and runs in the task that reads the link. A request leaves the engine on `Retired`,
or when that dies: those without a final event await another one then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import structlog

from scheduler.errors import (
    GrammarLimit,
    InvalidRequest,
    LinkError,
    PromptTooLong,
    RequestFailed,
    SchedulerError,
)
from scheduler.events import FinishReason
from scheduler.requests.answer_reading import AnswerReading
from scheduler.requests.lifecycle import Event, State
from scheduler.requests.record import End, EndToken, StreamRecord
from scheduler.requests.table import Requests
from scheduler.shared.messages import (
    Cancel,
    PrefillOut,
    PromptLogprobsOut,
    Retired,
    StepOutput,
    ToEngine,
    TokenOut,
    WaitOut,
)
from scheduler.telemetry.observation import RequestSamples

_log = structlog.get_logger("multiplexer")
_ENGINE_LOST = "the engine died"


class Multiplexer:
    """Between one engine and the requests that it has. `send` takes messages for the engine."""

    def __init__(
        self,
        engine: str,
        requests: Requests,
        send: Callable[[ToEngine], None],
        samples: RequestSamples,
        reading: AnswerReading,
        clock: Callable[[], float],
    ) -> None:
        """`engine`: its name."""
        self._engine = engine
        self._requests = requests
        self._held = requests.at(engine)
        self._send = send
        self._samples = samples
        self._reading = reading
        self._clock = clock

    def take(self, record: StreamRecord) -> None:
        """Hand a request to the engine, which resumes it if it has had another one."""
        now = self._clock()
        if first := record.state is State.QUEUED:
            record.dispatched_at = now
            self._samples.submitted(record, now)
        else:
            self._samples.resumed()
        self._requests.dispatch(record, self._engine, now)
        try:
            self._send(record.submit if first else record.resubmit_message())
        except Exception as error:
            # The engine does not have it, so no Retired will come to free its credit.
            _log.exception("submit_failed", request=record.request.public_id)
            record.fail(RequestFailed(f"the request could not be sent to the engine: {error}"))
            self._requests.move(record, Event.RETIRE)

    def cancel(self, record: StreamRecord) -> None:
        """Tell the engine that nobody waits for a request. It leaves when its Retired arrives."""
        record.cancel_sent_at = self._clock()
        self._send(Cancel(record.request_id))

    def route(self, output: StepOutput) -> list[StreamRecord]:
        """Deliver one step: what `reading` does not read at once is read later, in order. A failure in one
        request's text ends that request and no other. Return the requests that the step has advanced and not
        ended.

        Raise LinkError for output that a working engine cannot send.
        """
        now = self._clock()
        self._reading.begin_step()
        ends = {retired.request_id: retired for retired in output.retired}
        for wait in output.waits:
            self._route_wait(wait, now)
        for prefill in output.prefills:
            self._route_prefill(prefill, now)
        for scores in output.prompt_logprobs:
            self._route_prompt_logprobs(scores)
        written: dict[int, list[TokenOut]] = {}
        for token in output.tokens:
            written.setdefault(token.request_id, []).append(token)
        for request_id, tokens in written.items():
            end = ends.get(request_id)
            self._route_tokens(request_id, tokens, end is not None and end.reason == "stop", now)
        for retired in output.retired:
            self._route_retired(retired)
        moved = set(written)
        moved.update(one.request_id for one in output.prefills)
        moved.update(one.request_id for one in output.waits)
        return [one for each in sorted(moved) if (one := self._held.get(each)) is not None and one.listening]

    def _record(self, request_id: int) -> StreamRecord:
        try:
            return self._held[request_id]
        except KeyError:
            raise LinkError(
                f"the engine sent output for request {request_id}, which it does not have"
            ) from None

    def _route_wait(self, wait: WaitOut, now: float) -> None:
        record, since = self._record(wait.request_id), now - wait.seconds_ago
        match wait.waits_for:
            case "nothing":
                self._requests.move(record, Event.ADMIT, since)
            case "preempted":
                self._requests.move(record, Event.PREEMPT, since)
            case reason:
                self._requests.move(record, Event.WAIT, since, reason)

    def _route_prefill(self, prefill: PrefillOut, now: float) -> None:
        record = self._record(prefill.request_id)
        if record.listening:
            self._requests.move(record, Event.PREFILL, now)
            record.put_prefill(prefill.done, prefill.total, prefill.cached, now)

    def _route_prompt_logprobs(self, out: PromptLogprobsOut) -> None:
        record = self._record(out.request_id)
        if record.listening and record.pipeline.prompt is not None:
            record.pipeline.prompt.add(out.start, out.entries)

    def _route_tokens(
        self, request_id: int, tokens: Sequence[TokenOut], ends_with_stop_token: bool, now: float
    ) -> None:
        """Deliver the tokens that one step gave a request. Their text is in the mailbox, which merges it to
        one piece, before the reader runs (unless the step's budget is spent). Each token is counted by
        itself, because a stop string may end the answer at any of them."""
        record = self._record(request_id)
        for place, out in enumerate(tokens):
            if not record.listening or record.over:
                self._samples.late_token()
                continue
            if place == 0:
                self._samples.tokens(record, now)
            self._requests.move(record, Event.TOKEN, now)
            record.count_token(out.token, now, begins_step=place == 0)
            is_stop_token = ends_with_stop_token and place == len(tokens) - 1
            self._reading.read(record, EndToken(out) if is_stop_token else out)
            if not is_stop_token and record.listening and record.repeats:
                self._reading.read(record, End(FinishReason.LENGTH, repeats=True))

    def _route_retired(self, retired: Retired) -> None:
        record = self._record(retired.request_id)
        if record.cancel_sent_at is not None:
            self._samples.cancelled(self._clock() - record.cancel_sent_at)
        if not record.listening:
            self._requests.move(record, Event.RETIRE)
            return
        self._requests.move(record, Event.END)
        self._finish(record, retired)

    def _finish(self, record: StreamRecord, retired: Retired) -> None:
        reason = FinishReason.STOP
        error: SchedulerError | None = None
        match retired.reason:
            case "stop" | "pooled":
                pass
            case "length":
                reason = FinishReason.LENGTH
            case "refused" if retired.most_tokens:
                tokens = len(record.submit.prompt)
                error = PromptTooLong(tokens, None, retired.most_tokens, why=retired.detail)
            case "refused":
                error = InvalidRequest(retired.detail)
            case "failed":
                error = RequestFailed(retired.detail)
            case "grammar":
                place = record.prepared.grammar_place
                error = GrammarLimit(f"{place}: {retired.detail}", param=place)
            case "cancelled":
                error = RequestFailed("the engine cancelled a request without a Cancel")
            case _:
                assert_never(retired.reason)
        self._reading.read(record, End(reason, retired.vector, retired.hold_refusal, error))

    def lose_all(self) -> None:
        """Let go of all requests, because the engine died: they await another one. Those whose answers lack
        nothing end, and cancelled ones retire."""
        now = self._clock()
        for record in list(self._held.values()):
            if record.state is State.CANCELLING:
                self._requests.move(record, Event.RETIRE)
                continue
            self._requests.move(record, Event.LOSE, now)
            record.lost_at = now if record.lost_at is None else record.lost_at
            if (ending := record.ending) is not None:
                self._requests.move(record, Event.END)
                refusal = _ENGINE_LOST if record.submit.holds else ""
                self._reading.read(record, End(ending, hold_refusal=refusal))
