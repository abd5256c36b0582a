"""The scheduler's interface for users: `async with scheduler.stream(request) as stream`.

It connects the stages and has no rules of its own: `preparation` makes tokens of a request, the `pool` admits
it, queues it and gives it to an engine, and `operations` reports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import count

import trio

from scheduler.config import SchedulerConfig
from scheduler.engines.boundary import EngineProvision
from scheduler.engines.pool import Pool
from scheduler.engines.supervisor import EngineNeverReady
from scheduler.errors import KV_EXCEEDED, Draining, PromptTooLong
from scheduler.offload import Offload
from scheduler.operations import Operations
from scheduler.prepared import Prepared
from scheduler.prompt.offload import PreparationOffLoop
from scheduler.prompt.preparation import Preparation, check_prompt_logprobs
from scheduler.request import GenerationRequest, Prompt
from scheduler.requests.mailbox import Doorbell
from scheduler.requests.record import StreamRecord, records_of
from scheduler.requests.stream import RequestStream as RequestStream
from scheduler.shared.messages import Ready
from scheduler.shared.token_ids import TokenIds
from scheduler.telemetry import observation
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.history import HistoryWatch, RequestCounts
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from scheduler.telemetry.request_recorder import RequestRecorder


class ModelLoader:
    """Decides whether the engines of a scheduler's model are loaded. With this default they always are."""

    def check(self) -> None:
        """Raise Unavailable if they cannot be loaded."""

    def changed(self) -> None:
        """Take note that a request or an engine has come or left."""

    @property
    def waits_for(self) -> str:
        """Return what queued requests wait for before an engine can take any of them, or an empty string."""
        return ""


class Scheduler:
    """Owns every request from acceptance to its final event. `run` must be running."""

    def __init__(
        self,
        config: SchedulerConfig,
        preparation: Preparation,
        provision: EngineProvision,
        offload: Offload,
        metrics: ModelMetrics | None = None,
    ) -> None:
        """Without `metrics`, make those of a model without a name."""
        self.metrics = metrics or Metrics().of_model("")
        self.model_loader = ModelLoader()
        self._recorder = RequestRecorder(self.metrics)
        self.recent = self._recorder.recent
        self.preparation = preparation
        self.offload = offload
        self.off_loop = PreparationOffLoop(preparation, offload)
        self._ids = count(1)
        self._config = config
        self._telemetry = Containment(self.metrics.server)
        self._change = trio.Event()
        self._history_watch = HistoryWatch(self.metrics, self._work)
        self.history = self._history_watch.history
        self.pool = Pool(config, provision, self._recorder, offload, self._changed)
        self.queue = self.pool.queue
        self.operations = Operations(
            self.pool, preparation.pieces.statistics, self.recent, lambda: self.model_loader.waits_for
        )

    @property
    def context_tokens(self) -> int:
        """Return the model's context, or the longest prompt for which the KV budget of an engine ever has
        room: an agent shortens its history by it."""
        own = self.preparation.context_tokens
        ready = [engine.process.ready for engine in self.pool if engine.process is not None]
        return min(own, max((one.most_prompt_tokens or own for one in ready), default=own))

    async def run(self) -> None:
        """Run until cancelled, which ends the engines and fails every request.

        Raise EngineNeverReady.
        """
        never_ready: EngineNeverReady | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._history_watch.run)
                if (trials := self.preparation.grammar_trials) is not None:
                    nursery.start_soon(trials.run)
                try:
                    await self.pool.run()
                except EngineNeverReady as error:
                    # Raised outside the nursery, which would wrap it in an exception group.
                    never_ready = error
                nursery.cancel_scope.cancel()
        finally:
            self.end_all()
        if never_ready is not None:
            raise never_ready

    @asynccontextmanager
    async def stream(
        self, requests: GenerationRequest | list[GenerationRequest]
    ) -> AsyncIterator[RequestStream]:
        """Accept `requests`, all or none, and stream their events. The choices of the first request are
        numbered first, then those of the second, and so on. Leaving the block early cancels them. A list is
        emptied when they are accepted, so that nobody holds the texts of prompts that are tokens.

            async with scheduler.stream(GenerationRequest("chatcmpl-1", ChatPrompt(messages))) as stream:
                with suppress(trio.EndOfChannel):
                    while True:
                        choice, event = await stream.receive_choice()  # TextDelta, ..., Finished or Failed

        Raise, before anything is queued, InvalidRequest and its subclasses, TenantLimit, QueueFull or
        Unavailable.
        """
        requests = requests if isinstance(requests, list) else [requests]
        arrived_at, doorbell = trio.current_time(), Doorbell()
        with ExitStack() as releases:
            prepared, leaving = await self._admitted(requests, arrived_at)
            requests.clear()
            records = records_of(prepared, self._ids, arrived_at, doorbell)
            del prepared
            for record in records:
                releases.callback(self._release, record)
            self._telemetry.sample(observation.observe_accepted, self.metrics, records)
            self.pool.accept(records, leaving)
            del leaving
            yield RequestStream(records, doorbell, lambda: self.operations.queue_waits_for)

    async def _admitted(
        self, requests: Sequence[GenerationRequest], arrived_at: float
    ) -> tuple[list[Prepared], list[StreamRecord]]:
        """Prepare `requests`, and return those that leave the queue for them."""
        first, choices = requests[0], sum(request.choices for request in requests)
        adapters = [self.pool.adapters.key_of(request.adapter) for request in requests]
        try:
            self.model_loader.check()
            with self.pool.admission.preparing(first, arrived_at, self.pool.room, choices):
                prepared = [
                    await self.off_loop.prepare(request, self._salt(request.tenant, request.cache_salt), key)
                    for request, key in zip(requests, adapters, strict=True)
                ]
                check_prompt_logprobs(prepared)
            longest, context = max(len(one.submit.prompt) for one in prepared), self.context_tokens
            if context < min(longest, self.preparation.context_tokens):
                raise PromptTooLong(longest, None, context, why=KV_EXCEEDED)
            prompt_tokens = sum(len(one.submit.prompt) * one.request.choices for one in prepared)
            now = trio.current_time()
            return prepared, self.pool.admission.admit(first, now, choices, prompt_tokens=prompt_tokens)
        except BaseException as error:
            self._recorder.refused(first, error)
            raise

    def _salt(self, tenant: str, salt: str = "") -> str:
        """Return the salt of a request: only requests with equal ones share what is kept of prompts."""
        # Tenant names are printable, so no tenant's salt can begin with another's name and NUL.
        return f"{tenant}\0{salt}" if self._config.cache_sharing == "tenant" else salt

    async def tokenize(self, prompt: Prompt, tenant: str = "") -> TokenIds:
        """Return the token ids of `prompt`; nothing is queued. Raise InvalidRequest and its subclasses."""
        return await self.off_loop.tokenize(prompt, tenant, self._salt(tenant))

    async def wait_ready(self) -> Ready:
        """Wait until an engine can take requests, and return the Ready of one."""
        while (ready := self.pool.ready) is None:
            await self._change.wait()
        return ready

    @property
    def busy(self) -> bool:
        """Return whether a request is queued or running."""
        return len(self.pool.requests) > 0

    def service_token_seconds(self) -> float | None:
        """Return the engine time of one token of service, or None before it is measured."""
        return self.pool.service_token_seconds(self._config.intake.fairness.output_weight)

    def start_drain(self) -> None:
        """Close admission; accepted requests continue."""
        self.pool.admission.close()

    async def wait_idle(self) -> None:
        """Wait until no request is queued or running."""
        while self.busy:
            await self._change.wait()

    def end_all(self) -> None:
        """Fail every request with a shutdown error, and close admission."""
        self.pool.admission.close()
        reason = "the server is shutting down; this answer is incomplete"
        self.pool.end_all(Draining(reason, retry_after_seconds=1.0))

    # --- a request's way in and out

    def _release(self, record: StreamRecord) -> None:
        """Release a request whose reader has left, before or after the final event; the record may not have
        been enqueued yet."""
        record.abandon()
        self.pool.cancel(record)

    def _work(self) -> RequestCounts:
        return RequestCounts(len(self.queue), len(self.pool), self.recent.number)

    def _changed(self) -> None:
        self._telemetry.sample(self.operations.observe_queue)
        change, self._change = self._change, trio.Event()
        change.set()
        self.model_loader.changed()
