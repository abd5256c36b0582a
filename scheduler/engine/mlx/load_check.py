"""Checks at load that a model gives each request in a batch, and behind a cached prefix, what it gives alone.

mlx-lm's modules differ in what they assume of their caches: some cannot be merged, some let padding into a
recurrent state, some have a window in the mask only, some are written for one row. A list of names would be
wrong with the next release, so a short run of each kind decides, through the real back end, its batch and its
prefix cache. The reference is the model alone, with mlx-lm's own caches, given the same tokens; what is
compared are log-probabilities, so a tie that falls the other way is no difference.

One scene shows it: a long prompt, a shorter one that joins while it is read, two very short ones that join
while they decode, then the next turn of the first and two others behind its prefix. Most models are right in
all of it. For the others the check finds

1. without prefixes, whether prefill chunks of one length are needed (`equal_chunks`), or one row at a time
   (`one_row`);
2. with them, whether rows need copies of their prefix (`copied_prefixes`), or must do without
   (`no_prefixes`);
3. in the same scene again, with drafts that are right for some rows and wrong for others, whether tokens can
   be taken back (`no_drafts`).

**Cost.** A model call reads all weights, so calls count, not tokens: 17 for the scene, 6 for its references,
16 for the scene with drafts. A reference is one call on a prompt with its answer.

A model that raises with one row at a time as well cannot be served: `ModelUnusable`. One that only differs
there is mlx-lm's own (plamo3 differs by where a prompt is cut), and is served.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias

import mlx.core as mx
from mlx.utils import tree_flatten

from scheduler.engine.backend import Backend
from scheduler.engine.drafts.speculation import Draft, DraftTokens, Proposal, Speculation
from scheduler.engine.drafts.verify_costs import VerifyCosts
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.batching import ONE_ROW, Batching
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.cache_layout import alone
from scheduler.engine.mlx.packed import Packing
from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.device_errors import is_device_error
from scheduler.shared.messages import LogprobsOut, Sampling, StepOutput, Submit, TokenOut
from scheduler.shared.token_ids import compact

CHECK_ROWS = 5
CHECK_CHUNK_TOKENS = 16
_ANSWER_TOKENS = 3
_LONG_ANSWER_TOKENS = 8
_PREFIX_TOKENS = 24
"""More than a chunk, and than an n-gram or a convolution that a state has to remember."""
_TOP = 5
_TOLERANCE = 1e-3
_TOLERANCE_16_BIT = 0.05
"""Fraction of the largest logit: the effect of another order of summation. Where not all is float32 the
median position counts, because rounding may send a token to another expert, which changes one position much
and the others little; a wrong mask or state changes all that follow. And the model's own rounding counts:
what one row at a time differs by. Where a token of the prompt goes to another expert, that is much; in 36
layers of random weights in bfloat16 it was 0.06 to 0.13, and a batch's 0.05 to 0.12, on a CPU and an H100
(trained weights: 0.005 and 0.006)."""
_COARSE = {mx.bfloat16, mx.float16, mx.uint8, mx.uint32}
"""Types of 16-bit parameters, and of packed ones."""
_MOST_TURNS = 200
_KEPT_POSITIONS = 12
"""Positions that are kept of a reference: those of its answer, and in a second turn those of the first turn's
answer."""

MakeBackend: TypeAlias = Callable[[Batching], Backend]
"""A back end with CHECK_ROWS slots and chunks of CHECK_CHUNK_TOKENS, that shares every prefix it can."""


class ModelUnusable(Exception):
    """The model raises with one row at a time as well."""


class _Differs(Exception):
    """A batch does not give what the model gives alone."""


def check(
    model: Any, vocabulary: int, make: MakeBackend, *, prefixes: bool = True, packing: Packing | None = None
) -> Batching:
    """Return the fullest batching that is right for this model. Without `prefixes` there is no prefix cache
    to check. `packing`: into what keys and values are packed.

    Raise ModelUnusable.
    """
    check = _Check(model, vocabulary, make, packing)
    return check.drafts(check.batching(Batching(in_place=prefixes, prefixes=prefixes)))


def has_float32_weights(model: Any) -> bool:
    """Return whether no parameter is of 16 bits or packed."""
    flat: Any = tree_flatten(model.parameters())
    return not any(value.dtype in _COARSE for _, value in flat)


def computes_in_float32(model: Any) -> bool:
    """Return whether rounding is float32's all the way. The logits' type does not say: some models convert
    them, and float32 weights beside packed embeddings widen what was rounded before."""
    return has_float32_weights(model) and device().float32 == "float32"


@dataclass(frozen=True, slots=True)
class _Reference:
    """The results of the model alone for a text, at its last positions. `logprobs`: (positions, vocabulary),
    in float32; `scales`: (positions), the largest logits."""

    text: list[int]
    logprobs: mx.array
    scales: mx.array

    @classmethod
    def of(cls, text: list[int], logits: mx.array) -> _Reference:
        """`logits`: (positions, vocabulary), of the text's last positions."""
        logits = logits.astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        scales = mx.maximum(mx.abs(logits).max(axis=-1), 1.0)
        mx.eval(logprobs, scales)
        return cls(text, logprobs, scales)

    @property
    def _start(self) -> int:
        return len(self.text) - len(self.logprobs)

    def has(self, text: list[int], start: int) -> bool:
        """Return whether it begins with this text, and has its positions from `start` on."""
        return self._start <= start and self.text[: len(text)] == text

    def differences(self, answer: Sequence[TokenOut], start: int) -> list[float]:
        """Return the difference at each token, as a fraction of the largest logit: between what was reported
        for it and its alternatives and what is expected, and of the chosen token from the best. `start`: the
        position that chose the first token."""
        rows = slice(start - self._start, start - self._start + len(answer))
        reported = [{**dict(_logprobs(token).top), token.token: _logprobs(token).chosen} for token in answer]
        most = max(len(each) for each in reported)
        # The last one of each is the chosen token: a shorter row repeats it.
        ids = [
            [*each, *[token.token] * (most - len(each))] for token, each in zip(answer, reported, strict=True)
        ]
        expected = self.logprobs[rows]
        found = mx.array([[each[at] for at in row] for each, row in zip(reported, ids, strict=True)])
        values = mx.take_along_axis(expected, mx.array(ids), axis=-1)
        chosen = mx.array([[token.token] for token in answer])
        behind = expected.max(axis=-1) - mx.take_along_axis(expected, chosen, axis=-1)[:, 0]
        largest = mx.maximum(mx.abs(values - found).max(axis=-1), behind) / self.scales[rows]
        fractions: list[float] = largest.tolist()  # type: ignore[assignment]
        return fractions


class _Check:
    def __init__(self, model: Any, vocabulary: int, make: MakeBackend, packing: Packing | None) -> None:
        self._model = model
        self._packing = packing
        self._make = make
        self._tokens = range(1, min(vocabulary, 1000))
        self._right: dict[Batching, bool] = {}
        self._raised: dict[Batching, str] = {}
        self._rounding = 0.0
        """What one row at a time differs by, once it has been played."""
        self._answers: dict[Batching, _Answers] = {}
        self._references: dict[Packing | None, list[_Reference]] = {}
        # Numbers that differ by a last bit may be packed into different codes.
        self._exact = computes_in_float32(model) and packing is None

    def batching(self, wanted: Batching) -> Batching:
        """Return `wanted`, with the fallbacks that the model needs."""
        for tried in (wanted, replace(wanted, in_place=False)):
            if self._is_right(tried):
                return tried
        return self._prefixes(self._rows(wanted))

    def drafts(self, batching: Batching) -> Batching:
        """Return the batching, without drafts if they change what rows get: a step with drafts is padded, as
        chunks of unequal lengths are."""
        if not batching.drafts or not self._make(batching).facts.verifies:
            return batching
        known = self._answers.get(batching)
        right = batching.padded and known is not None and self._plays(batching, known)
        return batching if right else replace(batching, drafts=False)

    def _rows(self, wanted: Batching) -> Batching:
        """Return `wanted`, with chunks of one length or one row at a time where it needs that without
        prefixes as well."""
        for tried in (wanted, replace(wanted, padded=False)):
            if self._is_right(replace(tried, prefixes=False, in_place=False)):
                return tried
        if not self._is_right(ONE_ROW) and ONE_ROW in self._raised:
            raise ModelUnusable(self._raised[ONE_ROW])
        return ONE_ROW

    def _prefixes(self, known: Batching) -> Batching:
        """Return the batching, with less of the prefix cache if need be."""
        if not (known.batched and known.prefixes):
            return known
        ladder = [known, replace(known, in_place=False)] if known.in_place else [known]
        if known.padded:
            # What padding leaves in a short state may show only behind it, in 16 bits (nemotron_h).
            ladder += [replace(each, padded=False) for each in ladder]
        without = replace(known, in_place=False, prefixes=False)
        return next((tried for tried in ladder if self._is_right(tried)), without)

    def _is_right(self, batching: Batching) -> bool:
        if batching not in self._right:
            self._right[batching] = self._plays(batching)
        return self._right[batching]

    def _plays(self, batching: Batching, known: _Answers | None = None) -> bool:
        """Play the scene. Return whether all have what they have alone. `known`: the answers of a run without
        drafts; with them the scene is played with drafts."""
        try:
            run = _Run(self._make(batching), None if known is None else _Guesses(known))
            self._scene(run)
            self._answers.setdefault(batching, run.answers)
            # Backwards: the reference of the second turn is that of the first as well.
            worst = max(
                self._difference(submit, run.answers[submit.request_id], batching)
                for submit in reversed(run.submits)
            )
            if batching == ONE_ROW and math.isfinite(worst):
                self._rounding = worst
            return self._tolerated(worst, batching)
        except _Differs:
            return False
        except Exception as error:  # Models raise many types for a cache or a batch that they do not expect.
            if is_device_error(error):
                raise  # It says nothing of the model, and a verdict is kept.
            self._raised[batching] = f"{type(error).__name__}: {error}"
            return False

    def _scene(self, run: _Run) -> None:
        prefix = self._prompt(_PREFIX_TOKENS, 4)
        (first,) = run.submit([*prefix, *self._prompt(17, 5)])
        run.submit(self._prompt(6, 2))
        run.until(lambda: run.answers[first.request_id] != [])
        # Read by themselves, their states are shorter than an n-gram or a convolution. They still decode when
        # the last ones join.
        run.submit(self._prompt(2, 3), self._prompt(1, 9), answer_tokens=_LONG_ANSWER_TOKENS)
        run.until(lambda: len(run.answers[first.request_id]) == _ANSWER_TOKENS)
        answered = [token.token for token in run.answers[first.request_id]]
        second = [*first.prompt, *answered, *self._prompt(3, 6)]
        run.submit(second, [*prefix, *self._prompt(7, 7)], [*prefix, *self._prompt(2, 8)])
        run.until(run.ended)

    def _prompt(self, count: int, seed: int) -> list[int]:
        return [self._tokens[(seed * 97 + 31 * at * at + 7 * at) % len(self._tokens)] for at in range(count)]

    def _difference(self, submit: Submit, answer: Sequence[TokenOut], batching: Batching) -> float:
        """Return how far an answer is from what the model gives alone, as a fraction of the largest logit.
        What is no number is infinitely far."""
        packing = self._packing if batching.batched else None  # One row a call has mlx-lm's own caches.
        text = [*submit.prompt, *(token.token for token in answer[:-1])]
        reference = self._reference(text, len(answer), packing)
        differences = reference.differences(answer, len(text) - len(answer))
        if any(math.isnan(each) for each in differences):
            return math.inf
        return max(differences) if self._exact else median(differences)

    def _tolerated(self, difference: float, batching: Batching) -> bool:
        if self._exact:
            return difference <= _TOLERANCE
        if difference > _TOLERANCE_16_BIT and batching != ONE_ROW:
            self._is_right(ONE_ROW)  # It measures the model's rounding.
            return difference <= _TOLERANCE_16_BIT + self._rounding
        return difference <= _TOLERANCE_16_BIT

    def _reference(self, text: list[int], positions: int, packing: Packing | None) -> _Reference:
        """Return one that has the last `positions` of this text."""
        references = self._references.setdefault(packing, [])
        for known in references:
            if known.has(text, len(text) - positions):
                return known
        logits = self._model(mx.array([text]), cache=alone(self._model, packing))[0, -_KEPT_POSITIONS:]
        found = _Reference.of(text, logits)
        references.append(found)
        return found


_Answers: TypeAlias = dict[int, list[TokenOut]]


class _Free(VerifyCosts):
    def ratio(self, rows: int, drafted: int) -> float:
        return 1.0


class _Guesses(Speculation):
    """Proposes two tokens of each known answer at a time, and wrong ones for every second row. Every second
    time it proposes none, so that rows that lag behind others decode plainly, too."""

    def __init__(self, answers: _Answers) -> None:
        super().__init__(_Free())
        self._asked = 0
        self._tokens = {number: [token.token for token in answer] for number, answer in answers.items()}

    def proposals(
        self, rows: Iterable[EngineSequence], forced: DraftTokens, has_pending: bool
    ) -> list[Proposal]:
        self._asked += 1
        if self._asked % 2 == 0:
            return []
        return [
            Proposal(Draft(row.request_id, tuple(guess), "long_match"), 1.0)
            for row in rows
            if (guess := self._guess(row.request_id, row.generated_tokens + has_pending))
        ]

    def _guess(self, number: int, position: int) -> list[int]:
        guess = self._tokens[number][position : position + 2]
        return [token ^ 1 for token in guess] if number % 2 else guess


class _Run:
    """A back end in a loop, and what its requests got."""

    def __init__(self, backend: Backend, speculation: Speculation | None) -> None:
        # A clock that stands still: the scene is the same on every machine.
        pace = PrefillPace(2 * CHECK_CHUNK_TOKENS)
        self._loop = EngineLoop(backend, CHECK_ROWS, pace, clock=lambda: 0.0, speculation=speculation)
        self.submits: list[Submit] = []
        self.answers: dict[int, list[TokenOut]] = {}

    def submit(self, *prompts: Iterable[int], answer_tokens: int = _ANSWER_TOKENS) -> list[Submit]:
        """Submit these prompts, all in one iteration of the loop."""
        submits = [
            Submit(
                len(self.submits) + number,
                compact([*prompt]),
                answer_tokens,
                (),
                Sampling(temperature=0.0),
                # Where a model with states keeps them.
                boundaries=(_PREFIX_TOKENS,),
                top_logprobs=_TOP,
            )
            for number, prompt in enumerate(prompts, 1)
        ]
        self.submits += submits
        self.answers |= {submit.request_id: [] for submit in submits}
        self._iterate(submits)
        return submits

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(_MOST_TURNS):
            if done():
                return
            self._iterate([])
        raise _Differs

    def ended(self) -> bool:
        return self._loop.idle

    def _iterate(self, commands: Sequence[Submit]) -> None:
        for frame in self._loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                self.answers[token.request_id].append(token)
            if any(retired.reason != "length" for retired in frame.retired):
                raise _Differs


def _logprobs(token: TokenOut) -> LogprobsOut:
    assert token.logprobs is not None
    return token.logprobs
