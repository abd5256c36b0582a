"""Everything the parent knows of one accepted request: one record, one state, one owner of each fact."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from scheduler.answer.pipeline import AnswerPipeline
from scheduler.errors import DeadlineExceeded, InvalidRequest, SchedulerError
from scheduler.events import Failed, Finished, FinishReason, Prefilling, Usage
from scheduler.link.messages import LogprobsOut, Sampling, Submit
from scheduler.prompt.preparation import PreparedRequest
from scheduler.request import GenerationRequest
from scheduler.requests.lifecycle import Event, State, move
from scheduler.requests.mailbox import Doorbell, Mailbox
from scheduler.statistics import RunningStatistics

_SETTLED_TOKENS = 4
"""More than a step's, and more than can have been on the way when an engine died."""
_SEED_STRIDE = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: the seeds of neighbouring requests' choices do not meet."""


@dataclass(slots=True)
class StreamRecord:
    """A request from acceptance to retirement. Times are trio's clock; a request arrives before it is
    tokenized, so that its waits and its timeout include that."""

    request_id: int
    prepared: PreparedRequest
    pipeline: AnswerPipeline
    arrived_at: float
    choice: int = 0
    queued_at: float = 0.0
    mailbox: Mailbox = field(default_factory=Mailbox)
    state: State = State.QUEUED
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    """Of the prefilled ones, those that the engine did not have to compute, once it tells."""
    output_tokens: int = 0
    emitted: array[int] = field(default_factory=lambda: array("I"))
    """Every token of the answer, its end included: what the next engine needs to go on."""
    told_prefill: int = 0
    """The furthest progress that the reader has heard of; after an engine's death it begins again."""
    resumed: int = 0
    """How many further engines it was sent to."""
    resumed_tokens: int = 0
    """`output_tokens` when it was last sent to one."""
    lost_at: float | None = None
    """When its engine died, until the next one tells of it."""
    deaths: int = 0
    """Engines that died with it on board, since it last settled on one."""
    suspect: bool = False
    """Whether it may have been the cause of the last one."""
    dispatched_at: float | None = None
    started_at: float | None = None
    """When the engine first told of its progress: until then it may have waited for a slot there."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    cancel_sent_at: float | None = None
    """When the engine was told to let go of it."""
    outcome: str | None = None
    """The one terminal outcome, as the metrics name it; set when the reader's final event is."""

    def move(self, event: Event) -> None:
        self.state = move(self.state, event)

    @property
    def deadline(self) -> float | None:
        """When the client's own timeout passes."""
        return deadline_of(self.prepared.request, self.arrived_at)

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that the engine has computed for it."""
        return max(0, self.prefilled_tokens - self.cached_tokens)

    @property
    def listening(self) -> bool:
        """Whether what the engine says of this request still concerns a reader."""
        return self.state in (State.SUBMITTED, State.PREFILLING, State.DECODING, State.STRANDED)

    @property
    def settled(self) -> bool:
        """Whether the engine that has it now has brought it on."""
        return self.output_tokens - self.resumed_tokens >= _SETTLED_TOKENS

    @property
    def ending(self) -> FinishReason | None:
        """Why its answer is complete as it stands, where only its Retired was lost."""
        if self.emitted and self.emitted[-1] in self.prepared.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.output_tokens >= self.prepared.max_tokens else None

    def resubmit_message(self) -> Submit:
        """It goes on with another engine, behind what it has said."""
        self.resumed += 1
        self.resumed_tokens = self.output_tokens
        return self.submit_message()

    def submit_message(self) -> Submit:
        return Submit(
            request_id=self.request_id,
            prompt=[*self.prepared.prompt, *self.emitted] if self.emitted else self.prepared.prompt,
            max_tokens=self.prepared.max_tokens,
            stop_token_ids=self.prepared.stop_token_ids,
            sampling=self._sampling(),
            salt=self.prepared.request.cache_salt,
            session=self.prepared.request.session,
            system_tokens=self.prepared.system_tokens,
            boundaries=self.prepared.boundaries,
            done_tokens=len(self.emitted),
            top_logprobs=self.prepared.request.top_logprobs,
            min_tokens=self.prepared.request.min_tokens,
            grammar=self.prepared.grammar,
        )

    def _sampling(self) -> Sampling:
        """A seed of its own for each choice; the first has the request's."""
        sampling = self.prepared.request.sampling
        if self.choice == 0:
            return sampling
        return msgspec.structs.replace(sampling, seed=(sampling.seed + self.choice * _SEED_STRIDE) % 2**64)

    def put_prefill(self, done: int, total: int, cached: int) -> None:
        self.move(Event.PREFILL)
        if self.output_tokens:
            # Computed again behind an engine's death: no news to its reader, and no cost of its own.
            return
        self.prefilled_tokens = done
        self.cached_tokens = cached
        if done >= self.told_prefill:
            self.told_prefill = done
            self.mailbox.put_progress(Prefilling(done, total))

    def put_tokens(self, tokens: Sequence[int], now: float, logprobs: Sequence[LogprobsOut] = ()) -> None:
        """Tokens of the answer, where asked for with their log-probabilities. Afterwards `pipeline.stopped`
        tells whether a stop string came."""
        for token in tokens:
            self.count_token(token, now)
        for piece in self.pipeline.feed(tokens, logprobs):
            self.mailbox.put(piece)

    def count_token(self, token: int, now: float) -> None:
        self.move(Event.TOKEN)
        self.emitted.append(token)
        self.output_tokens += 1
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now

    def finish(self, by_engine: FinishReason) -> None:
        """The answer is complete: `by_engine` says why the row ended, unless the pipeline ended it before
        (a stop string may also complete in the text that was still held back)."""
        for piece in self.pipeline.finish(by_engine):
            self.mailbox.put(piece)
        usage = Usage(
            len(self.prepared.prompt),
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=self.pipeline.reasoning_tokens,
        )
        reason = self.pipeline.finish_reason(by_engine)
        self.mailbox.put_final(Finished(reason, usage, self.pipeline.stop_string))
        self.outcome = reason.value

    def fail(self, error: SchedulerError) -> None:
        self.mailbox.put_final(Failed(error))
        match error:
            case InvalidRequest():
                self.outcome = "invalid"
            case DeadlineExceeded():
                self.outcome = "deadline"
            case _:
                self.outcome = "error"

    def statistics(self, now: float) -> RunningStatistics:
        """For operators' eyes."""
        request = self.prepared.request
        return RunningStatistics(
            id=request.public_id,
            request_id=self.request_id,
            tenant=request.tenant,
            session=request.session or "",
            priority=request.priority,
            state=self.state.name.lower(),
            prompt_tokens=len(self.prepared.prompt),
            prefilled_tokens=self.prefilled_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            max_tokens=self.prepared.max_tokens,
            age_seconds=now - self.arrived_at,
            running_seconds=None if self.started_at is None else now - self.started_at,
        )

    def abandon(self) -> None:
        """The reader has left; without a final event before, that is the outcome."""
        if self.outcome is None:
            self.outcome = "cancelled"


def records_of(
    requests: Sequence[PreparedRequest],
    ids: Iterator[int],
    pipeline_of: Callable[[PreparedRequest, int], AnswerPipeline],
    arrived_at: float,
    doorbell: Doorbell,
) -> list[StreamRecord]:
    """One record a choice: to the engine they are requests that happen to begin alike."""
    return [
        StreamRecord(
            request_id=next(ids),
            prepared=prepared,
            pipeline=pipeline_of(prepared, choice),
            arrived_at=arrived_at,
            choice=choice,
            mailbox=Mailbox(doorbell),
        )
        for prepared in requests
        for choice in range(prepared.request.choices)
    ]


def deadline_of(request: GenerationRequest, arrived_at: float) -> float | None:
    """None for a request that has all the time in the world."""
    return None if request.timeout_seconds is None else arrived_at + request.timeout_seconds
