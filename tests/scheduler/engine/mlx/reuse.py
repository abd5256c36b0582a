"""An engine loop over one family's model, and the tokens that each prompt gets by itself.

The oracle is mlx-lm's own loop for one request, without any cache of ours.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx import load_check
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.batch import Batch
from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.kv.cache_layout import row_bytes
from scheduler.engine.mlx.kv.prefix_disk import PrefixDisk
from scheduler.engine.mlx.loaded_model import LoadedModel
from scheduler.engine.mlx.packed import PACKINGS
from scheduler.engine.planning.pace import PrefillPace
from scheduler.shared.messages import (
    PROTOCOL_VERSION,
    Inspection,
    KvCacheDtype,
    LogprobsOut,
    Ready,
    Retired,
    StepOutput,
    Submit,
    ToEngine,
)
from scheduler.shared.token_ids import KEY_BYTES
from tests.contracts.journal import prefixes_of, prompt_of, request
from tests.scheduler.engine.mlx.families import FAMILIES, random_model
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.prefix.integrity import check_integrity

_CHUNK = 8
_TOKENS = 7
_PLENTY = 1 << 30


def words(count: int, seed: int) -> list[int]:
    return [token % 300 for token in prompt_of(count, seed)]


@dataclass(slots=True)
class Heard:
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    prefilled: int = 0
    retired: Retired | None = None
    prompt_logprobs: list[LogprobsOut] = field(default_factory=list)


def loaded_model(model: Any, family: str, kv_cache_dtype: KvCacheDtype = "auto") -> LoadedModel:
    """As `load` describes it."""
    used = make_prompt_cache(model)
    vocabulary = model(mx.array([[0]]), cache=used).shape[-1]
    held = row_bytes(used, PACKINGS[kv_cache_dtype])
    ready = Ready(PROTOCOL_VERSION, "cpu", family, vocabulary, held.token_bytes, 0, "float32")
    return LoadedModel(model, msgspec.structs.replace(ready, kv_cache_dtype=kv_cache_dtype), held)


def disk_of(backend: MlxBackend) -> PrefixDisk:
    """Return what it has of its disk tier, which is open."""
    assert backend._disk is not None
    return backend._disk


class ReuseEngine:
    """A loop over one family's model, and the tokens that each prompt has by itself."""

    def __init__(
        self,
        model: Any,
        family: str,
        budget_bytes: int = _PLENTY,
        tier: DiskTier | None = None,
        kv_cache_dtype: KvCacheDtype = "auto",
        group_cost_tokens: int = 0,
        batching: Batching | None = None,
        budget_tokens: int = 0,
        **changes: Any,
    ) -> None:
        """By default, whatever two rows share they share in place, however little it is, and `batching` is
        what the check at load finds. `budget_tokens`: how many fit into the KV budget, in place of bytes."""
        self.model, loaded = model, loaded_model(model, family, kv_cache_dtype)
        if budget_tokens:
            budget_bytes = loaded.row_bytes.held(budget_tokens) + KEY_BYTES * budget_tokens
        fields = {"max_slots": 8, "prefill_chunk_tokens": _CHUNK, "prefill_rows": 4} | changes
        load = load_of(Path(), kv_cache_bytes=budget_bytes, **fields)
        self.backend = MlxBackend(
            loaded,
            load,
            tier=tier,
            group_cost_tokens=group_cost_tokens,
            batching=batching or batching_of(model, family),
        )
        self.loop = EngineLoop(self.backend, load.max_slots, PrefillPace(load.prefill_chunk_tokens))
        self.heard: dict[int, Heard] = {}
        self._ids = 0
        self.prefilled_tokens = 0
        self.inspections: list[Inspection] = []

    @property
    def batch(self) -> Batch:
        """The running rows. Not of a model that cannot run in batches."""
        assert isinstance(self.backend._batch, Batch)
        return self.backend._batch

    def submit(self, prompt: list[int], **fields: Any) -> Submit:
        self._ids += 1
        submit = msgspec.structs.replace(request(self._ids, prompt, _TOKENS), **fields)
        self.heard[self._ids] = Heard()
        return submit

    def iterate(self, commands: Iterable[ToEngine] = ()) -> None:
        for frame in self.loop.iterate(commands):
            match frame:
                case StepOutput():
                    self._hear(frame)
                case Inspection():
                    self.inspections.append(frame)

    def _hear(self, output: StepOutput) -> None:
        for scores in output.prompt_logprobs:
            heard = self.heard[scores.request_id]
            assert not heard.tokens, "log-probabilities of a prompt after the first token"
            assert scores.start == 1 + len(heard.prompt_logprobs), "twice, or not in order"
            heard.prompt_logprobs += scores.entries
        for token in output.tokens:
            self.heard[token.request_id].tokens.append(token.token)
        for prefill in output.prefills:
            heard = self.heard[prefill.request_id]
            heard.cached, heard.prefilled = prefill.cached, prefill.done
        for retired in output.retired:
            self.heard[retired.request_id].retired = retired
        self.prefilled_tokens = output.counters.prefilled_tokens

    def finish(self) -> None:
        for _ in range(3000):
            if self.loop.idle:
                if self.backend.cache is not None:
                    check_integrity(prefixes_of(self.backend))
                return
            self.iterate()
            if self.loop.pausing:
                time.sleep(0.002)  # As the engine's inbox does: a real disk is being waited for.
        raise AssertionError("it never ended")

    def ask(self, *submits: Submit) -> list[Heard]:
        """All together; what was heard of each, after checking its tokens against the oracle."""
        self.iterate(submits)
        self.finish()
        for submit in submits:
            self.check(submit)
        return [self.heard[submit.request_id] for submit in submits]

    def check(self, submit: Submit) -> None:
        assert self.heard[submit.request_id].tokens == self.alone(submit)

    def check_beginning(self, submit: Submit) -> None:
        """Check the tokens of a request that was cancelled."""
        tokens = self.heard[submit.request_id].tokens
        assert tokens == self.alone(submit)[: len(tokens)]

    def alone(self, submit: Submit) -> list[int]:
        """Return the tokens that the model gives for it by itself, with most prompts computed at once."""
        key = (id(self.model), tuple(submit.prompt))
        if len(_ALONE.get(key, ())) < submit.max_tokens:
            prompt = mx.array(submit.prompt.tolist())
            steps = generate_step(prompt, self.model, max_tokens=submit.max_tokens, prefill_step_size=256)
            _ALONE[key] = [token for token, _ in steps]
        return _ALONE[key][: submit.max_tokens]


_MODELS: dict[str, Any] = {}
_ALONE: dict[tuple[int, tuple[int, ...]], list[int]] = {}
"""The longest answer so far: a shorter one is its beginning."""
# MLA adds part of its scores before attention is called; padding runs through the others' states.
FALLING_BACK: dict[str, Batching] = {
    "deepseek_v3": Batching(in_place=False),
    **dict.fromkeys(("mamba", "nemotron_h", "rwkv7"), Batching(padded=False)),
}
"""What mlx-lm's modules cannot do, as `test_load_check.py` checks. An entry that a release mends must go."""
_BATCHINGS: dict[str, Batching] = {**dict.fromkeys(FAMILIES, Batching()), **FALLING_BACK}


def batching_of(model: Any, family: str) -> Batching:
    """What the check at load finds. For what is no family of ours, it runs once."""
    if family not in _BATCHINGS:
        _BATCHINGS[family] = checked(model, family)
    return _BATCHINGS[family]


def checked(model: Any, family: str, kv_cache_dtype: KvCacheDtype = "auto") -> Batching:
    """The check at load."""
    loaded = loaded_model(model, family, kv_cache_dtype)
    fields = {
        "max_slots": load_check.CHECK_ROWS,
        "prefill_chunk_tokens": load_check.CHECK_CHUNK_TOKENS,
        "prefill_rows": load_check.CHECK_ROWS,
    }
    load = load_of(Path(), kv_cache_bytes=_PLENTY, **fields)

    def make(batching: Batching) -> MlxBackend:
        return MlxBackend(loaded, load, group_cost_tokens=0, batching=batching)

    return load_check.check(model, loaded.description.vocabulary, make, packing=PACKINGS[kv_cache_dtype])


def engine_of(family: str, **changes: Any) -> ReuseEngine:
    return ReuseEngine(model_of(family), family, **changes)


def model_of(family: str) -> Any:
    """Made once a session."""
    if family not in _MODELS:
        _MODELS[family] = random_model(family)
    return _MODELS[family]
