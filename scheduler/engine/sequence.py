"""A request in the engine, waiting or running: one record, and one writer of each field."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from scheduler.engine.prefix.nodes import Known
from scheduler.shared.adapter_files import salted
from scheduler.shared.messages import PrefillOut, Submit
from scheduler.shared.token_ids import TokenIds, common_run


@dataclass(eq=False, slots=True)
class EngineSequence:
    """`tokens` is the only copy of its token ids in this process: prompt, then answer. Most other fields are
    positions in it."""

    submit: Submit
    """The request as received, without the prompt's ids, and with its adapter in its salt."""
    tokens: TokenIds
    known: Known[Any, Any]
    prompt_tokens: int
    """Tokens to prefill before the first is decoded. After a preemption, and for a request resumed from
    another engine, they include the answer so far."""
    computed_tokens: int = 0
    """Tokens in the row's KV cache. The back end counts them."""
    cached_tokens: int = 0
    """Prompt tokens of the prefix hit."""
    in_place_tokens: int = 0
    """Tokens that are in the prefix cache only, where the running row attends to them."""
    checkpoints: tuple[int, ...] = ()
    """Positions at which prefill pauses and the row's state is kept, for models with layers whose cache
    cannot be cut."""
    admission: int = 0
    """Ordinal of its admission."""
    arrived_at: float = 0.0
    preemptions: int = 0
    scored_tokens: int = 0
    """The last position of the prompt whose log-probability was returned."""
    hold_refusal: str = ""
    """Why a hold that it asked for is not kept, as in Retired; empty if none was refused."""
    _answer_start: int = 0
    _shared: dict[int, int] = field(default_factory=dict)
    request_id: int = field(init=False)
    """Its own attribute: a step asks six times for each row."""

    def __post_init__(self) -> None:
        self.request_id = self.submit.request_id

    @classmethod
    def of(cls, submit: Submit, arrived_at: float = 0.0) -> EngineSequence:
        """Return the record of a request. The prompt's ids are copied, as the answer is appended to them."""
        tokens = submit.prompt[:]
        salt = salted(submit.adapter, submit.salt)
        return cls(
            msgspec.structs.replace(submit, prompt=array("I"), salt=salt),
            tokens,
            Known(tokens, salt),
            len(tokens),
            arrived_at=arrived_at,
            _answer_start=len(tokens) - submit.done_tokens,
        )

    @property
    def prefilled_tokens(self) -> int:
        """Return the prompt tokens in the row's KV cache."""
        return min(self.computed_tokens, self.prompt_tokens)

    @property
    def prefilling(self) -> bool:
        return self.computed_tokens < self.prompt_tokens

    @property
    def chunkable_tokens(self) -> int:
        """Return the prompt tokens to compute in chunks: the last one is computed with the rows that
        decode."""
        return max(0, self.prompt_tokens - 1 - self.computed_tokens)

    @property
    def generated_tokens(self) -> int:
        return len(self.tokens) - self._answer_start

    @property
    def new_tokens(self) -> int:
        """Return tokens generated since it was last admitted."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def resumed(self) -> bool:
        """Return whether part of its answer is prefilled: after a preemption, or a crash of another
        engine."""
        return self.prompt_tokens > self._answer_start

    @property
    def asked_tokens(self) -> int:
        """Return the length of what the client sent."""
        return self._answer_start

    @property
    def unscored(self) -> bool:
        """Return whether log-probabilities of its prompt are still to be computed: it takes no prefix hit
        then."""
        wanted = self.submit.prompt_logprobs is not None
        return wanted and self.scored_tokens < self.asked_tokens - 1

    def score(self, start: int, end: int) -> range:
        """Return the positions whose log-probabilities the tokens from `start` to `end` give, and that were
        not returned yet: from now on they count as returned. Each token gives the next one's."""
        if not self.unscored:
            return range(0)
        positions = range(max(start, self.scored_tokens) + 1, min(end + 1, self.asked_tokens))
        if positions:
            self.scored_tokens = positions[-1]
        return positions

    def prompt(self) -> array[int]:
        """Return a copy of what the client sent."""
        return self.tokens[: self._answer_start]

    def answer(self) -> array[int]:
        """Return a copy of the answer so far."""
        return self.tokens[self._answer_start :]

    @property
    def until_pause(self) -> int:
        """Return the chunkable tokens up to the next checkpoint: no chunk goes beyond."""
        done, left = self.computed_tokens, self.chunkable_tokens
        return min(left, next((pause - done for pause in self.checkpoints if done < pause), left))

    @property
    def begins_to_decode(self) -> bool:
        """Return whether only its last prompt token is left: it joins the rows that decode."""
        return self.prefilling and not self.chunkable_tokens

    def progress(self) -> PrefillOut:
        """Return how much of its prompt is computed, for the server."""
        return PrefillOut(self.request_id, self.prefilled_tokens, self.prompt_tokens, self.cached_tokens)

    def requeue(self) -> None:
        """Requeue it after a preemption: its answer so far becomes part of what must be prefilled."""
        self.prompt_tokens = len(self.tokens)
        self.computed_tokens = self.cached_tokens = self.in_place_tokens = 0
        self.preemptions += 1
        self._shared.clear()

    def shared_with(self, other: EngineSequence) -> int:
        """Return the length of the common prefix of both prompts, without this one's last token, which it
        must compute itself. Cached: every step needs it while one waits and the other prefills."""
        if other.request_id not in self._shared:
            same_salt = self.submit.salt == other.submit.salt
            limit = min(self.prompt_tokens - 1, other.prompt_tokens) if same_salt else 0
            self._shared[other.request_id] = (
                common_run(self.tokens, 0, other.tokens, limit) if limit > 0 else 0
            )
        return self._shared[other.request_id]


class Slots:
    """The running sequences by request id, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._by_request: dict[int, EngineSequence] = {}

    @property
    def free(self) -> int:
        return self.limit - len(self._by_request)

    def take(self, sequence: EngineSequence) -> None:
        assert self.free > 0, "more sequences were admitted than there are slots"
        assert sequence.request_id not in self._by_request, "a request id was used twice"
        self._by_request[sequence.request_id] = sequence

    def release(self, request_id: int) -> EngineSequence | None:
        """Return the sequence that left, or None if it had no slot."""
        return self._by_request.pop(request_id, None)

    def __getitem__(self, request_id: int) -> EngineSequence:
        return self._by_request[request_id]

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._by_request

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[EngineSequence]:
        return iter(self._by_request.values())
