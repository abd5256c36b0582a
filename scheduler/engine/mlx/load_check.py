"""Checks at load that a model gives each request in a batch, and behind a cached prefix, what it gives alone.

mlx-lm's modules differ in what they assume of their caches: some cannot be merged, some let padding into a
recurrent state, some have a window in the mask only, some are written for one row. A list of names would be
wrong with the next release, so a short run of each kind decides, through the real back end, its batch and its
prefix cache. The reference is the model alone, with mlx-lm's own caches, given the same tokens; what is
compared are log-probabilities, so a tie that falls the other way is no difference.

1. Two prompts of different length together, and two short ones that join while they decode. If one differs
   or the model raises, prefill chunks of one length are tried (`equal_chunks`), then one row at a time
   (`one_row`).
2. A prompt, then its next turn and two others behind the same prefix. If one differs, rows get copies of
   their prefix (`copied_prefixes`), then no prefixes at all (`no_prefixes`).

A model that raises with one row at a time as well cannot be served: `ModelUnusable`. One that only differs
there is mlx-lm's own (plamo3 differs by where a prompt is cut), and is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.backend import Backend
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.batching import ONE_ROW, Batching
from scheduler.engine.mlx.sharing_check import computes_in_float32, sharing_fault
from scheduler.engine.pace import PrefillPace
from scheduler.link.messages import Retired, Sampling, StepOutput, Submit, TokenOut
from scheduler.token_ids import compact

CHECK_ROWS = 4
CHECK_CHUNK_TOKENS = 16
_ANSWER_TOKENS = 4
_JOIN_AFTER_TURNS = 4
_PREFIX_TOKENS = 24
"""More than a chunk, and than an n-gram or a convolution that a state has to remember."""
_TOP = 5
_TOLERANCE = 1e-3
_TOLERANCE_16_BIT = 0.05
"""Fraction of the largest logit: the effect of another order of summation. Where not all is float32 the
median position counts, because rounding may send a token to another expert, which changes one position much
and the others little; a wrong mask or state changes all that follow. Where it is one of the prompt's tokens
that goes to another expert, a right model falls back: with two sets of prompts one hid a fault."""
_MOST_TURNS = 200

MakeBackend: TypeAlias = Callable[[Batching], Backend]
"""A back end with CHECK_ROWS slots and chunks of CHECK_CHUNK_TOKENS, that shares every prefix it can."""


class ModelUnusable(Exception):
    """The model raises with one row at a time as well."""


class _Differs(Exception):
    """A batch does not give what the model gives alone."""


_ONE_ROW_BY_TYPE = {
    "minimax_m3_vl": "sparse attention counts blocks by cache slot, which left padding shifts (by reading"
    " mlx-lm 0.32.2; it shows only in prompts of several blocks)",
}
"""Model types whose fault needs longer prompts than a check at load can afford."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reasons`: why each fallback is needed, in words, in the order in which they were found."""

    batching: Batching
    reasons: tuple[str, ...] = ()


def check(model: Any, vocabulary: int, make: MakeBackend, *, prefixes: bool = True) -> Verdict:
    """The fullest batching that is right for this model. `prefixes` False: there is no prefix cache to check.

    Raises ModelUnusable.
    """
    if (known := _ONE_ROW_BY_TYPE.get(str(getattr(model, "model_type", "")))) is not None:
        return Verdict(ONE_ROW, (known,))
    sharing = sharing_fault(model) if prefixes else None
    wanted = Batching(in_place=prefixes and sharing is None, prefixes=prefixes)
    check = _Check(model, vocabulary, make)
    return check.prefixes(check.rows(Verdict(wanted, () if sharing is None else (sharing,))))


@dataclass(frozen=True, slots=True)
class _Fault:
    reason: str
    raised: bool
    """Whether the model raised; otherwise it differs."""

    def __str__(self) -> str:
        return self.reason


class _Check:
    def __init__(self, model: Any, vocabulary: int, make: MakeBackend) -> None:
        self._model = model
        self._make = make
        self._tokens = range(1, min(vocabulary, 1000))
        self._exact = computes_in_float32(model)

    def rows(self, verdict: Verdict) -> Verdict:
        without = replace(verdict.batching, prefixes=False, in_place=False)
        for fallback, tried in (
            (verdict.batching, without),
            (replace(verdict.batching, padded=False), replace(without, padded=False)),
            (ONE_ROW, ONE_ROW),
        ):
            if (fault := self._fault(tried, self._joining)) is None:
                return replace(verdict, batching=fallback)
            verdict = replace(verdict, reasons=(*verdict.reasons, str(fault)))
            if fault.raised and not tried.batched:
                raise ModelUnusable(str(fault))
        return replace(verdict, batching=ONE_ROW)

    def prefixes(self, verdict: Verdict) -> Verdict:
        """The verdict, with less of the prefix cache if need be."""
        known = verdict.batching
        if not (known.batched and known.prefixes):
            return verdict
        ladder = [known, replace(known, in_place=False)] if known.in_place else [known]
        for tried in ladder:
            if (fault := self._fault(tried, self._continuing)) is None:
                return replace(verdict, batching=tried)
            verdict = replace(verdict, reasons=(*verdict.reasons, str(fault)))
        return replace(verdict, batching=replace(known, in_place=False, prefixes=False))

    def _fault(self, batching: Batching, scenario: Callable[[_Run], None]) -> _Fault | None:
        """Why the scenario failed; None: it did not."""
        try:
            run = _Run(self._make(batching))
            scenario(run)
            for submit in run.submits:
                self._compare(submit, run.answers[submit.request_id])
        except _Differs as differs:
            return _Fault(str(differs), raised=False)
        except Exception as error:  # Models raise many types for a cache or a batch that they do not expect.
            return _Fault(f"{type(error).__name__}: {error}", raised=True)
        return None

    def _joining(self, run: _Run) -> None:
        run.submit(self._prompt(41, 1))
        run.submit(self._prompt(6, 2))
        run.turns(_JOIN_AFTER_TURNS)
        # Their states are shorter than an n-gram or a convolution.
        run.submit(self._prompt(2, 3))
        run.submit(self._prompt(1, 9))
        run.finish()

    def _continuing(self, run: _Run) -> None:
        prefix = self._prompt(_PREFIX_TOKENS, 4)
        first = run.submit([*prefix, *self._prompt(5, 5)])
        run.finish()
        answer = [token.token for token in run.answers[first.request_id]]
        run.submit([*first.prompt, *answer, *self._prompt(3, 6)])
        run.submit([*prefix, *self._prompt(7, 7)])
        run.submit([*prefix, *self._prompt(2, 8)])
        run.finish()

    def _prompt(self, count: int, seed: int) -> list[int]:
        return [self._tokens[(seed * 97 + 31 * at * at + 7 * at) % len(self._tokens)] for at in range(count)]

    def _compare(self, submit: Submit, answer: Sequence[TokenOut]) -> None:
        """Raises _Differs."""
        differences: list[float] = []
        tolerance = _TOLERANCE if self._exact else _TOLERANCE_16_BIT
        alone = self._alone(submit.prompt.tolist(), [token.token for token in answer])
        for token, logits in zip(answer, alone, strict=True):
            logits = logits.astype(mx.float32)
            scale = max(1.0, float(mx.abs(logits).max()))
            differences.append(_difference(token, logits - mx.logsumexp(logits)) / scale)
        worst = max(differences) if self._exact else median(differences)
        if not worst <= tolerance:  # NaN is a difference.
            raise _Differs(f"log-probabilities differ by {worst:.2g} of the largest logit")

    def _alone(self, prompt: Sequence[int], answer: Sequence[int]) -> Iterator[mx.array]:
        """(vocabulary,) The logits before each token of the answer."""
        caches = make_prompt_cache(self._model)
        for start in range(0, len(prompt) - 1, CHECK_CHUNK_TOKENS):
            chunk = prompt[start : min(start + CHECK_CHUNK_TOKENS, len(prompt) - 1)]
            self._model(mx.array([chunk]), cache=caches)
            mx.eval([layer.state for layer in caches])
        for token in [prompt[-1], *answer[:-1]]:
            yield self._model(mx.array([[token]]), cache=caches)[0, -1]


def _difference(token: TokenOut, expected: mx.array) -> float:
    """Between what was reported for a token and its alternatives, and what is expected; also of the chosen
    token from the best."""
    assert token.logprobs is not None
    reported: Mapping[int, float] = {**dict(token.logprobs.top), token.token: token.logprobs.chosen}
    values: list[float] = expected[mx.array(list(reported))].tolist()  # type: ignore[assignment]
    pairs = zip(values, reported.values(), strict=True)
    return max(
        float(expected.max()) - float(expected[token.token]),
        *(abs(value - found) for value, found in pairs),
    )


class _Run:
    """A back end in a loop, and what its requests got."""

    def __init__(self, backend: Backend) -> None:
        self._loop = EngineLoop(backend, CHECK_ROWS, PrefillPace(CHECK_CHUNK_TOKENS))
        self.submits: list[Submit] = []
        self.answers: dict[int, list[TokenOut]] = {}

    def submit(self, prompt: Iterable[int]) -> Submit:
        number, tokens = len(self.submits) + 1, compact([*prompt])
        submit = Submit(
            number,
            tokens,
            _ANSWER_TOKENS,
            (),
            Sampling(temperature=0.0),
            # Where a model with states keeps them.
            boundaries=(_PREFIX_TOKENS,),
            top_logprobs=_TOP,
        )
        self.submits.append(submit)
        self.answers[number] = []
        self._turn([submit])
        return submit

    def turns(self, count: int) -> None:
        for _ in range(count):
            self._turn([])

    def finish(self) -> None:
        for _ in range(_MOST_TURNS):
            if self._loop.idle:
                return
            self._turn([])
        raise _Differs("requests do not end")

    def _turn(self, commands: Sequence[Submit]) -> None:
        for frame in self._loop.turn(commands):
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                self.answers[token.request_id].append(token)
            for retired in frame.retired:
                _expect_length(retired)


def _expect_length(retired: Retired) -> None:
    if retired.reason != "length":
        raise _Differs(f"a request ended with {retired.reason!r}: {retired.detail}")
