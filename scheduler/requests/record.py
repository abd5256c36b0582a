"""The server's one record of an accepted request: one state, and one owner of each fact."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec

from scheduler.answer.pipeline import AnswerPipeline
from scheduler.answer.text_stream import Heavy
from scheduler.errors import DeadlineExceeded, InvalidRequest, SchedulerError
from scheduler.events import (
    AnswerPiece,
    Failed,
    Finished,
    FinishReason,
    Prefilling,
    TokenLogprobs,
    ToolCallStarted,
    Usage,
)
from scheduler.prepared import Prepared
from scheduler.request import GenerationRequest
from scheduler.requests.lifecycle import IN_ENGINE, State
from scheduler.requests.mailbox import Doorbell, Mailbox
from scheduler.requests.time_line import TimeLine
from scheduler.shared.messages import (
    MAX_KIND_CHARACTERS,
    Submit,
    TokenOut,
    TurnEnded,
)
from scheduler.statistics import RequestReport

_TRUSTED_STEPS = 4
"""More steps than can have been in flight when an engine died. Not tokens: one step may yield sixteen."""
_SEED_STRIDE = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: seeds of different requests' choices do not collide."""


_LISTENING = frozenset({*IN_ENGINE, State.AWAITING_ENGINE, State.ENDING})


@dataclass(frozen=True, slots=True)
class EndToken:
    """The token that ends the answer: it is counted, and is no text."""

    out: TokenOut


@dataclass(frozen=True, slots=True)
class End:
    """The end of the answer. `reason`: why the row ended; the pipeline may have ended the answer earlier."""

    reason: FinishReason
    vector: bytes = b""
    hold_refusal: str = ""
    error: SchedulerError | None = None
    """The error with which the answer ends instead; None if there is none."""
    repeats: bool = False
    """Whether the answer is ended because it repeats itself."""


Part: TypeAlias = TokenOut | EndToken | End
"""What an engine sends of an answer."""


@dataclass(slots=True)
class StreamRecord:
    """A request from acceptance to retirement. Times are trio's clock. `arrived_at` is before tokenizing, so
    waits and timeouts include it."""

    prepared: Prepared
    submit: Submit
    """What its engine gets; the next one also gets what is emitted."""
    pipeline: AnswerPipeline
    arrived_at: float
    choice: int = 0
    queued_at: float = 0.0
    mailbox: Mailbox = field(default_factory=Mailbox)
    state: State = State.QUEUED
    """Changed by `table.py` alone."""
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    """The prefilled tokens that came from the prefix cache, as the engine reported."""
    output_tokens: int = 0
    unread: deque[Part] = field(default_factory=deque)
    """Parts that have come, and that are not read to their end yet (`answer_reading.py`)."""
    emitted: array[int] = field(default_factory=lambda: array("I"))
    """Every token of the answer, its stop token included: the next engine needs them to resume."""
    reported_prefill: int = 0
    """The furthest progress reported to the reader; after an engine's death prefill itself starts again."""
    engine: str | None = None
    """The engine that holds it, or that died with it; None before it has got one."""
    expected_cached_tokens: int = 0
    """Prompt tokens that its engine was expected to find in its prefix cache."""
    resumed: int = 0
    """How often it was resumed on another engine."""
    resumed_tokens: int = 0
    """`output_tokens` when it was last resumed."""
    steps: int = 0
    """Steps of its current engine that gave it tokens."""
    lost_at: float | None = None
    """When its engine died; None once the next one has sent a token."""
    deaths: int = 0
    """Engines in a row that died with it on board as a suspect."""
    spared_deaths: int = 0
    """Further deaths in a row, which do not count against it (`engines/poison.py`)."""
    suspect: bool = False
    """Whether it may have caused the last of these deaths."""
    roams: bool = False
    """Whether, though a suspect, it may resume on an engine that had no part in that death."""
    dispatched_at: float | None = None
    started_at: float | None = None
    """When the engine first reported progress: until then it may have waited for a slot there."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    cancel_sent_at: float | None = None
    """When Cancel was sent to the engine."""
    end_token: TokenLogprobs | None = None
    called: set[str] = field(default_factory=set)
    """The names of the tools that the answer calls."""
    outcome: str | None = None
    """The one terminal outcome, as the metrics name it; set with the final event."""
    request: GenerationRequest = field(init=False)
    time_line: TimeLine = field(init=False)

    def __post_init__(self) -> None:
        self.request = self.prepared.request
        self.time_line = TimeLine(self.arrived_at)

    @property
    def request_id(self) -> int:
        return self.submit.request_id

    @property
    def uncached_tokens(self) -> int:
        """Return the prompt tokens that the engine computed for it."""
        return max(0, self.prefilled_tokens - self.cached_tokens)

    @property
    def usage(self) -> Usage:
        """Return the usage up to now."""
        return Usage(
            len(self.submit.prompt),
            cached_tokens=self.cached_tokens,
            output_tokens=0 if self.request.only_prompt else self.output_tokens,
            reasoning_tokens=self.pipeline.reasoning_tokens,
        )

    @property
    def listening(self) -> bool:
        """Return whether a reader still waits for the engine's output."""
        return self.state in _LISTENING

    @property
    def trusted(self) -> bool:
        """Return whether it has received tokens in enough steps of its current engine not to be suspected of
        crashing it."""
        return self.steps >= _TRUSTED_STEPS

    @property
    def ending(self) -> FinishReason | None:
        """Return the finish reason of a complete answer whose Retired was lost; else None."""
        if self.emitted and self.emitted[-1] in self.submit.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.output_tokens >= self.submit.max_tokens else None

    def resubmit_message(self) -> Submit:
        """Return the message that resumes it on another engine, after the tokens that it has."""
        self.resumed += 1
        self.resumed_tokens, self.steps = self.output_tokens, 0
        if (scores := self.pipeline.prompt) is not None:
            scores.lose()
        return msgspec.structs.replace(
            self.submit,
            prompt=self.submit.prompt + self.emitted,
            done_tokens=len(self.emitted),
            prompt_logprobs=None if scores is None or scores.whole else self.submit.prompt_logprobs,
        )

    def turn_ended_message(self) -> TurnEnded | None:
        """Return the message that says what its session waits for now; None without a session or an
        answer."""
        request = self.request
        if request.session is None or self.outcome is None or request.only_prompt:
            return None
        kind = "+".join(sorted(self.called)) if self.called else self.outcome
        return TurnEnded(self.submit.salt, self.submit.adapter, request.session, kind[:MAX_KIND_CHARACTERS])

    def put_prefill(self, done: int, total: int, cached: int, now: float) -> None:
        self.time_line.chunk(now, done - cached)
        if self.output_tokens:
            # Prefilled again after an engine's death: neither reported nor charged again.
            return
        self.prefilled_tokens = done
        self.cached_tokens = cached
        if done >= self.reported_prefill:
            self.reported_prefill = done
            self.mailbox.put_progress(Prefilling(done, total))

    def read(self, part: Part) -> Iterator[AnswerPiece | Heavy]:
        """Return an iterator over the pieces that the next part completes, for any thread. After a token,
        `pipeline.stopped` says whether the answer is over."""
        only_prompt = self.request.only_prompt
        match part:
            case TokenOut() if not only_prompt:
                return self.pipeline.read(part.token, part.logprobs)
            case EndToken(out) if not only_prompt:
                if out.logprobs is not None:
                    self.end_token = self.pipeline.end_token(out.token, out.logprobs)
                return self.pipeline.read_end(out.token)
            case End(reason, error=None):
                return self.pipeline.end(reason)
            case _:
                pass
        return iter(())

    @property
    def repeats(self) -> bool:
        """Return whether the answer must end, because it repeats itself."""
        repetition = self.prepared.repetition
        if repetition is None or self.output_tokens < self.submit.min_tokens:
            return False
        return repetition.ends(self.emitted)

    @property
    def over(self) -> bool:
        """Return whether the end of the answer has come but is not read yet: no later token counts."""
        return bool(self.unread) and isinstance(self.unread[-1], End)

    def forget_unread(self) -> None:
        """Drop what is unread: it is no part of the answer."""
        self.output_tokens -= sum(not isinstance(part, End) for part in self.unread)
        self.unread.clear()

    def count_token(self, token: int, now: float, *, begins_step: bool = True) -> None:
        """Count a token of the answer. `begins_step`: whether it is the first token of its step."""
        self.steps += begins_step
        self.emitted.append(token)
        self.output_tokens += 1
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now

    def finish(self, end: End) -> None:
        """Complete the answer, whose end has been read (a stop string may match in text that was held back
        until then)."""
        if end.error is not None:
            self.fail(end.error)
            return
        cut = self.request.only_prompt and not end.vector
        reason = FinishReason.LENGTH if cut else self.pipeline.finish_reason(end.reason)
        repeats = end.repeats and reason is FinishReason.LENGTH
        malformed = self.pipeline.call_faults.total()
        final = Finished(
            reason,
            self.usage,
            self.pipeline.stop_string,
            repeats,
            malformed,
            self.end_token,
            None if self.pipeline.prompt is None else self.pipeline.prompt.spelled,
            end.vector,
            end.hold_refusal,
        )
        self.mailbox.put_final(final)
        self.outcome = "repetition" if repeats else reason.value

    def put(self, piece: AnswerPiece) -> None:
        if isinstance(piece, ToolCallStarted):
            self.called.add(piece.name)
        self.mailbox.put(piece)

    def fail(self, error: SchedulerError) -> None:
        self.mailbox.put_final(Failed(error))
        match error:
            case InvalidRequest():
                self.outcome = "invalid"
            case DeadlineExceeded():
                self.outcome = "deadline"
            case _:
                self.outcome = "error"

    def report(self, now: float, *, with_spans: bool = False) -> RequestReport:
        """Return what operators see of it, from its arrival until `now`."""
        request, start = self.request, self.arrived_at
        spans = self.time_line.spans(now) if with_spans else ()
        return RequestReport(
            id=request.public_id,
            choice=self.choice,
            request_id=self.request_id,
            tenant=request.tenant,
            session=request.session or "",
            priority=request.priority,
            state=self.shown_state,
            outcome=self.outcome,
            engine=None if self.state is State.AWAITING_ENGINE else self.engine,
            prompt_tokens=len(self.submit.prompt),
            prefilled_tokens=self.prefilled_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            max_tokens=self.submit.max_tokens,
            resumed=self.resumed,
            dispatched_seconds=None if self.dispatched_at is None else self.dispatched_at - start,
            first_token_seconds=None if self.first_token_at is None else self.first_token_at - start,
            total_seconds=now - start,
            waits_for=self.waits_for,
            spans=tuple(replace(span, start=span.start - start, end=span.end - start) for span in spans),
        )

    @property
    def shown_state(self) -> str:
        """Return the state for operators, who see as `waits_for` why it has no slot."""
        match self.state:
            case State.WAITING:
                shown = State.SUBMITTED
            case State.PREEMPTED:
                decoded = self.output_tokens > self.resumed_tokens
                shown = State.DECODING if decoded else State.PREFILLING
            case shown:
                pass
        return shown.name.lower()

    @property
    def waits_for(self) -> str:
        """Return what keeps it from running, once it has left the queue: one of `shared.waits.REASONS`, or an
        empty string if it runs, or ends."""
        match self.state:
            case State.SUBMITTED:
                return "step"
            case State.WAITING:
                return self.time_line.waits_for
            case State.PREEMPTED | State.AWAITING_ENGINE as state:
                return state.value
            case _:
                return ""

    def abandon(self) -> None:
        """Take note that the reader has left. Without an earlier final event the outcome is `cancelled`."""
        if self.outcome is None:
            self.outcome = "cancelled"


def records_of(
    prepared: Sequence[Prepared], ids: Iterator[int], arrived_at: float, doorbell: Doorbell
) -> list[StreamRecord]:
    """Return one record for each choice: the engine sees independent requests with the same prompt."""
    return [
        StreamRecord(
            one,
            _of_choice(one.submit, choice, next(ids), pipeline),
            pipeline,
            arrived_at,
            choice,
            mailbox=Mailbox(doorbell),
        )
        for one in prepared
        for choice, pipeline in enumerate(one.pipelines())
    ]


def _of_choice(submit: Submit, choice: int, request_id: int, pipeline: AnswerPipeline) -> Submit:
    """Return the message of one choice. Each has its own seed, and the first one, which has the request's,
    also gets the prompt's log-probabilities."""
    seed = (submit.sampling.seed + choice * _SEED_STRIDE) % 2**64
    scores = pipeline.prompt
    return msgspec.structs.replace(
        submit,
        request_id=request_id,
        sampling=msgspec.structs.replace(submit.sampling, seed=seed),
        prompt_logprobs=None if scores is None or scores.whole else submit.prompt_logprobs,
    )
