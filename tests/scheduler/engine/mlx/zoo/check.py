"""Is a model right in the engine? Scenes in which requests meet in a batch, each held to mlx-lm alone."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.kv.cache_layout import row_bytes
from scheduler.engine.mlx.load_check import ModelUnusable
from scheduler.engine.mlx.loaded_model import LoadedModel
from scheduler.engine.mlx.packed import PACKINGS
from scheduler.engine.mlx.upstream.apply import apply
from scheduler.engine.mlx.upstream.mend import mend
from scheduler.engine.pace import PrefillBudget, PrefillPace
from scheduler.shared.messages import PROTOCOL_VERSION, Cancel, KvCacheDtype, Ready, StepOutput, Submit
from scheduler.shared.token_ids import compact
from tests.contracts.journal import GREEDY, kv_bytes, prompt_of, request
from tests.scheduler.engine.guesses import Guesses
from tests.scheduler.engine.mlx.families import fused
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.reuse import checked
from tests.scheduler.engine.mlx.zoo.alone import Alone, Answer, difference, rounding
from tests.scheduler.engine.mlx.zoo.rounding import Rule
from tests.scheduler.engine.mlx.zoo.tiny import VOCABULARY

apply()
"""As `load` does: models are built here, in tests and in programs, without it."""

CHUNK = 24
"""Prompt tokens of one row in a step, at most."""
_SLOTS = 8
_PREFIX_TOKENS = 330
"""Longer than every window and chunk, by a multiple."""
_TOKENS = 8
_MOST_TURNS = 2000


@dataclass(slots=True)
class _RandomPace(PrefillPace):
    """Budgets from one step to the next that no clock decides."""

    generator: random.Random = field(default_factory=lambda: random.Random(4))

    def budget(self, decoding: int, prefilling: int, context: int) -> PrefillBudget:
        return PrefillBudget(self.generator.choice([8, 25, 50, 96]), "unknown_speed")


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
    ) -> None:
        """`seed`: of the prefill budgets."""
        used = make_prompt_cache(model)
        logits = model(mx.array([[0]]), cache=used)
        held = row_bytes(used, PACKINGS[kv_cache_dtype])
        ready = Ready(PROTOCOL_VERSION, "cpu", model_type, logits.shape[-1], held.token_bytes, 0, "float32")
        ready = msgspec.structs.replace(ready, kv_cache_dtype=kv_cache_dtype)
        changes = {"max_slots": _SLOTS, "prefill_chunk_tokens": CHUNK, "prefill_rows": 4}
        load = load_of(Path(), kv_cache_bytes=1 << 30, **changes)
        self._backend = MlxBackend(
            LoadedModel(model, ready, held), load, group_cost_tokens=0, batching=batching
        )
        pace = _RandomPace(CHUNK, generator=random.Random(seed))
        self._loop = EngineLoop(self._backend, _SLOTS, pace, speculation=speculation)
        self.heard: dict[int, Answer] = {}
        self.running: dict[int, Submit] = {}
        self.verifies = self._backend.facts.verifies
        self.most_rows = 0
        self.cached_tokens = 0

    def iterate(self, submits: Sequence[Submit] = (), cancels: Collection[int] = ()) -> None:
        for submit in submits:
            self.heard[submit.request_id] = Answer()
            self.running[submit.request_id] = submit
        for frame in self._loop.iterate([*submits, *map(Cancel, cancels)]):
            assert isinstance(frame, StepOutput)
            self.most_rows = max(self.most_rows, frame.counters.running)
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
        self, arrivals: Mapping[int, Sequence[Submit]], leaves: Mapping[int, Collection[int]] | None = None
    ) -> None:
        """To the end; `arrivals` and `leaves`, the ids of requests that are cancelled, by turn."""
        leaves = leaves or {}
        for turn in range(_MOST_TURNS):
            self.iterate(arrivals.get(turn, ()), self.running.keys() & set(leaves.get(turn, ())))
            if turn >= max(arrivals) and self._loop.idle:
                assert not self.running
                assert kv_bytes(self._backend) == 0
                cache = self._backend.cache
                assert cache is None or not cache.prefixes.check_integrity()
                return
        raise AssertionError("it never ended")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What each scene showed: "right", or where it went wrong. `distinct`: how many tokens the answers
    have, of a model that should not repeat itself. `largest`: the largest difference of a logarithm of a
    token's probability."""

    scenes: dict[str, str]
    distinct: int = 0
    largest: float = 0.0
    fallbacks: tuple[str, ...] = ()
    """What the check at load found to be needed."""

    @property
    def outcome(self) -> str:
        """The worst of them, in the words of the table."""
        found = set(self.scenes.values())
        for kind in ("refused", "raises", "wrong tokens", "wrong logits"):
            if any(scene.startswith(kind) for scene in found):
                return kind
        return "right"


class _Questions:
    """Requests to one model, numbered."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, prompt: Sequence[int], tokens: int = _TOKENS, **fields: Any) -> Submit:
        """Every second one is sampled with a seed of its own."""
        self._count += 1
        seeded = msgspec.structs.replace(GREEDY, temperature=0.8, seed=self._count)
        sampling = seeded if self._count % 2 else GREEDY
        submit = request(self._count, list(prompt), tokens, sampling=sampling)
        return msgspec.structs.replace(submit, top_logprobs=0, **fields)


def words(count: int, seed: int) -> list[int]:
    return [token % VOCABULARY for token in prompt_of(count, seed)]


_PREFIX = words(_PREFIX_TOKENS, 1000)


class Trial:
    """One model in all scenes, mended and fused, held to what mlx-lm's own says."""

    def __init__(
        self, model: Any, model_type: str, exact: Any = None, kv_cache_dtype: KvCacheDtype = "auto"
    ) -> None:
        """`exact`: for a model that is not in float32, the same weights in float32."""
        self._kv_cache_dtype = kv_cache_dtype
        self._model, self._type = fused(mend(copy.deepcopy(model))), model_type
        self._rule = None if exact is None else Rule(model, exact)
        if (packing := PACKINGS[kv_cache_dtype]) is not None:
            # Whose caches can be cut, where mlx-lm's cannot.
            self._rule = Rule(self._model, self._model if exact is None else exact, packing)
        self._alone, self._ask = Alone(model, 2048), _Questions()
        self._batching = Batching()
        self._answers: list[Answer] = []
        self._largest = 0.0
        self._warm: Engine | None = None
        self._cold: list[Submit] = []

    def verdict(self) -> Verdict:
        try:
            self._batching = checked(self._model, self._type, self._kv_cache_dtype)
        except ModelUnusable as unusable:
            return Verdict({"load": f"refused: {unusable}"})
        scenes = {name: self.played(name) for name in _SCENES}
        distinct = len({token for answer in self._answers for token in answer.tokens})
        return Verdict(scenes, distinct, self._largest, self._batching.fallbacks)

    def played(self, scene: str) -> str:
        """What this scene shows, with all of the batch unless `verdict` found less."""
        try:
            return next((wrong for wrong in _SCENES[scene](self) if wrong is not None), "right")
        except Exception as error:  # A model raises whatever it raises.
            return f"raises {type(error).__name__}: {str(error)[:90]}".replace("\n", " ")

    def _compared(self, engine: Engine, submits: Sequence[Submit]) -> Iterator[str | None]:
        for submit in submits:
            wrong = self._difference(engine.heard[submit.request_id], submit)
            yield wrong and f"{wrong}; prompt of {len(submit.prompt)}"

    def _difference(self, found: Answer, submit: Submit) -> str | None:
        if self._rule is not None:
            self._answers.append(found)
            wrong = self._rule.difference(found, submit)
            self._largest = self._rule.largest
            return wrong
        expected = self._alone.answer(submit)
        self._answers.append(expected)
        self._largest = max(self._largest, rounding(found, expected))
        return difference(found, expected)

    def _engine(self) -> Engine:
        return self._engine_with(None)

    def _engine_with(self, speculation: Speculation | None) -> Engine:
        return Engine(
            self._model,
            self._type,
            self._batching,
            speculation=speculation,
            kv_cache_dtype=self._kv_cache_dtype,
        )

    def cuts(self) -> Iterator[str | None]:
        """mlx-lm itself, reading one prompt in pieces and as a whole."""
        submit = self._ask(words(130, 7))
        if self._rule is not None:
            return  # Asked of the float32 model.
        yield difference(self._alone.answer(submit, CHUNK), self._alone.answer(submit))

    def alone(self) -> Iterator[str | None]:
        engine = self._engine()
        for at, length in enumerate((1, 150)):
            submit = self._ask(words(length, at))
            engine.run({0: [submit]})
            yield from self._compared(engine, [submit])

    def joins(self) -> Iterator[str | None]:
        """Eight of different lengths, that join while others are read and answered."""
        engine = self._engine()
        lengths = (1, 17, 2, 33, 60, 97, 130, 9)
        submits = [self._ask(words(length, 10 + at)) for at, length in enumerate(lengths)]
        turns = (0, 0, 1, 3, 5, 8, 8, 18)
        engine.run(
            {turn: [one for one, at in zip(submits, turns, strict=True) if at == turn] for turn in turns}
        )
        yield from self._compared(engine, submits)

    def steps(self) -> Iterator[str | None]:
        """Prompts of two tokens beside long ones: where no chunk is padded, steps of one token come between
        chunks of several, in rows whose rings have turned beside rows whose have not."""
        engine = self._engine()
        lengths = {0: (300,), 2: (40, 2), 4: (33, 2), 5: (26, 10), 7: (50, 2), 9: (20, 3)}
        submits = {
            turn: [self._ask(words(length, 70 + turn + at)) for at, length in enumerate(those)]
            for turn, those in lengths.items()
        }
        engine.run(submits)
        yield from self._compared(engine, [submit for those in submits.values() for submit in those])

    def cold(self) -> Iterator[str | None]:
        """A burst behind one prefix that nothing has read yet, beside a prompt of its own."""
        self._warm = self._engine()
        rests = [words(length, 20 + length) for length in (1, 3, 11, 40)]
        self._cold = [self._ask(_PREFIX + rest, boundaries=(_PREFIX_TOKENS,)) for rest in rests]
        self._cold.append(self._ask(words(60, 29)))
        self._warm.run({0: self._cold})
        yield from self._compared(self._warm, self._cold)

    def warm(self) -> Iterator[str | None]:
        """Another burst behind it, with one that was asked before."""
        assert self._warm is not None, "there was no cold burst"
        submits = [
            self._ask(_PREFIX + words(length, 30 + length), boundaries=(_PREFIX_TOKENS,))
            for length in (2, 5, 17, 50)
        ]
        submits.append(self._ask(self._cold[2].prompt))
        self._warm.run({0: submits[:3], 4: submits[3:]})
        yield from self._compared(self._warm, submits)

    def turns(self) -> Iterator[str | None]:
        """The second turn of three of them: each prompt and its answer come back, with new words."""
        assert self._warm is not None, "there was no cold burst"
        submits = []
        for at, before in enumerate((self._cold[0], self._cold[3], self._cold[4])):
            said = [*before.prompt, *self._warm.heard[before.request_id].tokens]
            submits.append(self._ask(said + words(7 + at, 40 + at), boundaries=(len(said),)))
        self._warm.run({0: submits})
        yield from self._compared(self._warm, submits)

    def drafts(self) -> Iterator[str | None]:
        """Eight that join while others are answered, and verify in most steps what they said in a run
        without drafts, with some other tokens in it."""
        lengths = (1, 17, 60, 97, 130, 9)
        submits = [self._ask(words(length, 80 + at), 16) for at, length in enumerate(lengths)]
        submits += [self._ask(_PREFIX + words(length, 90), 16) for length in (2, 11)]
        arrivals = {turn: [one] for turn, one in zip((0, 1, 2, 3, 6, 8, 9, 11), submits, strict=True)}
        plain = self._engine()
        if not plain.verifies:
            return
        plain.run(arrivals)
        guesses = Guesses({number: answer.tokens for number, answer in plain.heard.items()})
        engine = self._engine_with(guesses)
        engine.run(arrivals)
        (sources,) = guesses.counters.sources.values()
        yield (
            None if sources[0] > sources[1] > 20 else f"refused: {sources[1]} of {sources[0]} drafts accepted"
        )
        yield from self._compared(engine, submits)

    def killed(self) -> Iterator[str | None]:
        """An engine ends in mid-stream; another one continues each answer after the tokens that are out."""
        first, second = self._engine(), self._engine()
        lengths = (2, 9, 33, 60, 97, 130)
        submits = [self._ask(words(length, 50 + at), 14) for at, length in enumerate(lengths)]
        submits.append(self._ask(_PREFIX + words(11, 60), 14))
        first.iterate(submits[:4])
        first.iterate(submits[4:])
        for _ in range(18):
            first.iterate()
        resumed: list[Submit] = []
        for submit in submits:
            said = first.heard[submit.request_id].tokens
            if len(said) < submit.max_tokens:
                prompt = compact([*submit.prompt, *said])
                resumed.append(msgspec.structs.replace(submit, prompt=prompt, done_tokens=len(said)))
        assert any(submit.done_tokens for submit in resumed), "nothing was out yet, or everything"
        second.run({0: resumed})
        for submit in submits:
            out = first.heard[submit.request_id]
            rest = second.heard.get(submit.request_id, Answer())
            whole = Answer(out.tokens + rest.tokens, out.logprobs + rest.logprobs)
            wrong = self._difference(whole, submit)
            yield wrong and f"{wrong}; {len(out.tokens)} before the kill"


_SCENES: dict[str, Callable[[Trial], Iterator[str | None]]] = {
    "cuts": Trial.cuts,
    "alone": Trial.alone,
    "joins": Trial.joins,
    "steps": Trial.steps,
    "cold": Trial.cold,
    "warm": Trial.warm,
    "turns": Trial.turns,
    "drafts": Trial.drafts,
    "killed": Trial.killed,
}
