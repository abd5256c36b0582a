"""A request as the engine knows it, waiting or running: one record, one owner of each fact."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import msgspec

from scheduler.engine.prefix.radix_tree import common_run, compact
from scheduler.link.messages import Submit


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` is the prompt as the prefix cache keeps it, made once."""

    submit: Submit
    tokens: array[int]
    prefilled_tokens: int = 0
    """Prompt tokens in the row's cache, found there or computed."""
    cached_tokens: int = 0
    """Prompt tokens that it had not to compute."""
    in_place_tokens: int = 0
    """What of a running row lies in the prefix cache and is attended to there; the rest is its own."""
    output: list[int] = field(default_factory=list)
    """The whole answer so far."""
    arrived_at: float = 0.0
    preemptions: int = 0
    stops: tuple[int, ...] = ()
    """Where its prefill pauses and its state is kept, for models whose layers cannot all be cut."""
    _shared: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, submit: Submit, arrived_at: float = 0.0) -> Sequence:
        """Ids that are no unsigned 32 bits are the back end's to refuse: here they make an empty key."""
        try:
            return cls(submit, compact(submit.prompt), arrived_at=arrived_at)
        except OverflowError:
            return cls(submit, compact([]), arrived_at=arrived_at)

    @property
    def request_id(self) -> int:
        return self.submit.request_id

    @property
    def generated_tokens(self) -> int:
        return len(self.output) + self.submit.done_tokens

    def go_on_later(self) -> None:
        """It has left its slot in the middle: from now on its answer so far is part of its prompt."""
        prompt = [*self.submit.prompt, *self.output]
        done = self.generated_tokens
        self.submit = msgspec.structs.replace(self.submit, prompt=prompt, done_tokens=done)
        self.tokens, self.output = compact(prompt), []
        self.prefilled_tokens = self.cached_tokens = self.in_place_tokens = 0
        self.preemptions += 1
        self._shared.clear()

    @property
    def prefilling(self) -> bool:
        return self.prefilled_tokens < len(self.tokens)

    def shared_with(self, other: Sequence) -> int:
        """How many first tokens both prompts have, short of this one's last, which it must compute itself.
        Remembered: it is asked again with every step that one waits and the other prefills."""
        if other.request_id not in self._shared:
            same_salt = self.submit.salt == other.submit.salt
            limit = min(len(self.tokens) - 1, len(other.tokens)) if same_salt else 0
            self._shared[other.request_id] = (
                common_run(self.tokens, 0, other.tokens, limit) if limit > 0 else 0
            )
        return self._shared[other.request_id]
