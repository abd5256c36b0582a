"""An engine over one model of the zoo, and all that is heard of it."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.upstream.apply import apply
from scheduler.engine.plan import StepPlan
from scheduler.engine.planning.pace import PrefillPace
from scheduler.shared.messages import AdapterSource, Cancel, FromEngine, KvCacheDtype, StepOutput, Submit
from scheduler.shared.token_ids import compact
from tests.contracts.journal import kv_bytes, prompt_of
from tests.scheduler.engine.mlx.reuse import ReuseEngine
from tests.scheduler.engine.mlx.zoo.alone import Answer
from tests.scheduler.engine.mlx.zoo.tiny import VOCABULARY
from tests.scheduler.engine.prefix.integrity import check_integrity

apply()
"""As `load` does: models are built here, in tests and in programs, without it."""

CHUNK = 24
"""Prompt tokens of one row in a step, at most."""
_SLOTS = 8
_MOST_TURNS = 2000


@dataclass(slots=True)
class _RandomPace(PrefillPace):
    """Budgets from one step to the next that no clock decides."""

    generator: random.Random = field(default_factory=lambda: random.Random(4))

    def budget(self, decoding: int, prefilling: int, context: int) -> int:
        return self.generator.choice([8, 25, 50, 96])


class Engine:
    """A loop over one model, whose rows share whatever they can."""

    def __init__(
        self,
        model: Any,
        model_type: str,
        batching: Batching,
        seed: int = 4,
        speculation: Speculation | None = None,
        kv_cache_dtype: KvCacheDtype = "auto",
        kv_tokens: int = 0,
        adapters: Sequence[AdapterSource] = (),
    ) -> None:
        """`seed`: of the prefill budgets. `kv_tokens`: how many fit into the KV budget; 0: any number."""
        reused = ReuseEngine(
            model,
            model_type,
            kv_cache_dtype=kv_cache_dtype,
            batching=batching,
            budget_tokens=kv_tokens,
            max_slots=_SLOTS,
            prefill_chunk_tokens=CHUNK,
        )
        self._backend = reused.backend
        for source in adapters:
            self._backend._adapters.load(source)
        pace = _RandomPace(CHUNK, generator=random.Random(seed))
        self._loop = EngineLoop(self._backend, _SLOTS, pace, speculation=speculation)
        self.heard: dict[int, Answer] = {}
        self.running: dict[int, Submit] = {}
        self.verifies = self._backend.facts.verifies
        self.most_rows = 0
        self.cached_tokens = 0
        self.preemptions = 0

    def preempt(self, rows: int) -> None:
        """Preempt some that decode, as where memory runs out."""
        chosen = [row.request_id for row in self._loop._slots if not row.prefilling][:rows]
        for request_id in chosen:
            self._loop._step(StepPlan(preempt=(request_id,)))

    def take_over(self, dead: Engine) -> None:
        """Go on with the requests of an engine that has died. What it had not sent of a prompt's
        log-probabilities begins anew."""
        self.heard = dead.heard
        resumed: list[Submit] = []
        for submit in dead.running.values():
            heard = self.heard[submit.request_id]
            rest = {"prompt": compact([*submit.prompt, *heard.tokens]), "done_tokens": len(heard.tokens)}
            if submit.prompt_logprobs is not None and len(heard.prompt) == len(submit.prompt) - 1:
                rest["prompt_logprobs"] = None
            else:
                heard.prompt.clear()
            resumed.append(msgspec.structs.replace(submit, **rest))
        self.running = {submit.request_id: submit for submit in dead.running.values()}
        self._hear(self._loop.iterate(resumed))

    def iterate(self, submits: Sequence[Submit] = (), cancels: Collection[int] = ()) -> None:
        for submit in submits:
            self.heard[submit.request_id] = Answer()
            self.running[submit.request_id] = submit
        self._hear(self._loop.iterate([*submits, *map(Cancel, cancels)]), cancels)

    def _hear(self, frames: Iterable[FromEngine], cancels: Collection[int] = ()) -> None:
        for frame in frames:
            assert isinstance(frame, StepOutput)
            self.most_rows = max(self.most_rows, frame.counters.running)
            self.preemptions = frame.counters.preemptions
            self.cached_tokens += sum(prefill.cached for prefill in frame.prefills)
            for token in frame.tokens:
                assert token.logprobs is not None
                self.heard[token.request_id].tokens.append(token.token)
                self.heard[token.request_id].logprobs.append(token.logprobs.chosen)
            for scored in frame.prompt_logprobs:
                prompt = self.heard[scored.request_id].prompt
                assert scored.start == 1 + len(prompt), "in order, and once"
                prompt.extend(entry.chosen for entry in scored.entries)
            for retired in frame.retired:
                submit = self.running.pop(retired.request_id)
                stopped = self.heard[retired.request_id].tokens[-1:]
                expected = "stop" if set(stopped) & set(submit.stop_token_ids) else "length"
                assert retired.reason == ("cancelled" if retired.request_id in cancels else expected), retired

    def run(
        self,
        arrivals: Mapping[int, Sequence[Submit]],
        leaves: Mapping[int, Collection[int]] | None = None,
        preempted: Collection[int] = (),
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        """From turn `begin` until all have ended, or to turn `end`. `arrivals` and `leaves`, the ids of
        requests that are cancelled, by turn; `preempted`: turns at which two rows are."""
        leaves = leaves or {}
        for turn in range(begin, _MOST_TURNS if end is None else end):
            if turn in preempted:
                self.preempt(2)
            self.iterate(arrivals.get(turn, ()), self.running.keys() & set(leaves.get(turn, ())))
            if turn >= max(arrivals) and self._loop.idle:
                assert not self.running
                assert kv_bytes(self._backend) == 0
                if (cache := self._backend.cache) is not None:
                    check_integrity(cache.prefixes)
                return
        assert end is not None, "it never ended"


def words(count: int, seed: int) -> list[int]:
    return [token % VOCABULARY for token in prompt_of(count, seed)]
