"""Our assumptions about mlx-lm, tested without our own code: one test for each.

If an upgrade of mlx-lm breaks one of these, its docstring names the change in mlx-lm, and the code of ours
that depends on it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator, StopSequences, generate_step
from mlx_lm.models.cache import BatchRotatingKVCache, make_prompt_cache
from mlx_lm.utils import load_model

from tests.contracts.journal import prompt_of
from tests.scheduler.engine.mlx.conftest import SHAPE, Tiny

_CHUNK = 8


def _argmax(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


def _always(token: int) -> Callable[[mx.array], mx.array]:
    """A sampler that shows where it was applied."""
    return lambda logprobs: mx.full((logprobs.shape[0],), token, dtype=mx.uint32)


def _biased_to(token: int) -> Callable[[mx.array, mx.array], mx.array]:
    """A logits processor that shows where it was applied."""
    return lambda tokens, logits: logits + 1e4 * (mx.arange(logits.shape[-1]) == token)


@pytest.fixture
def generator(tiny: Tiny) -> Iterator[Any]:
    generator = BatchGenerator(
        tiny.model,
        sampler=_argmax,
        completion_batch_size=8,
        prefill_batch_size=4,
        prefill_step_size=_CHUNK,
    )
    yield generator
    generator.close()


def _insert(
    generator: Any,
    prompt: list[int],
    max_tokens: int = 6,
    sampler: Any = _argmax,
    processors: tuple[Any, ...] = (),
    stops: StopSequences | None = None,
) -> int:
    (uid,) = generator.insert(
        [prompt],
        max_tokens=[max_tokens],
        samplers=[sampler],
        logits_processors=[list(processors)],
        stop_sequences=[stops or StopSequences([])],
    )
    assert isinstance(uid, int)
    return uid


def _collect(generator: Any, tokens: dict[int, list[int]], steps: int | None = None) -> None:
    """Return the tokens by uid of these steps, or of all."""
    for _ in range(200 if steps is None else steps):
        prompts, answers = generator.next()
        for answer in answers:
            tokens.setdefault(answer.uid, []).append(answer.token)
        if steps is None and not prompts and not answers:
            return


def _by_itself(tiny: Tiny, prompt: list[int], max_tokens: int) -> list[int]:
    return [token for token, _ in generate_step(mx.array(prompt), tiny.model, max_tokens=max_tokens)]


def test_the_version_is_the_one_we_wrote_against() -> None:
    """Any other release: its `insert` renamed the stop argument in each of the last three lines, and a fix
    may change tokens. Before raising the pin, read the change log with the tests below."""
    assert importlib.metadata.version("mlx-lm") == "0.32.2"
    requirements = importlib.metadata.requires("penstock") or []
    assert "mlx-lm==0.32.2" in requirements


def test_uids_count_upwards(generator: Any) -> None:
    """Catches uids that are reused or not integers: `_by_uid` would mix up two requests."""
    uids = [_insert(generator, [1, 2]) for _ in range(3)]
    _collect(generator, {})
    generator.remove([_insert(generator, [1, 2])])
    uids += [_insert(generator, [1, 2]) for _ in range(3)]
    assert uids == sorted(set(uids))


def test_one_insert_returns_one_uid_for_each_prompt(generator: Any) -> None:
    """Catches another shape of the answer: `admit` unpacks exactly one."""
    assert len(generator.insert([[1]])) == 1
    assert len(generator.insert([[1], [2]])) == 2


def test_next_returns_prompt_and_generation_responses(generator: Any) -> None:
    """Catches another form of `next`: a pair of lists, prompts with `uid` and `progress` (done, total),
    answers with `uid`, an int `token`, and `finish_reason`, which is None until the last."""
    uid = _insert(generator, prompt_of(2 * _CHUNK + 2, 51), max_tokens=2)
    progress, answers = [], []
    for _ in range(6):
        prompted, answered = generator.next()
        progress += [(prompt.uid, prompt.progress) for prompt in prompted]
        answers += [(answer.uid, type(answer.token), answer.finish_reason) for answer in answered]
    total = 2 * _CHUNK + 2
    assert progress == [(uid, (done, total)) for done in (_CHUNK, 2 * _CHUNK, total - 1, total)]
    assert answers == [(uid, int, None), (uid, int, "length")]


def test_the_first_token_comes_after_the_last_progress(generator: Any) -> None:
    """Catches a first token in the same `next` as the end of its prompt: a row's Retired could then come
    before its last PrefillOut, for which `step` finds no row any more."""
    _insert(generator, [1, 2, 3], max_tokens=1)
    seen = [tuple(len(responses) for responses in generator.next()) for _ in range(3)]
    assert seen == [(1, 0), (1, 0), (0, 1)]


def test_a_step_is_one_token_and_one_chunk(generator: Any) -> None:
    """Catches a `next` that prefills a whole prompt while others decode, or decodes several tokens: our step
    bounds the gap between two tokens."""
    talker = _insert(generator, [1], max_tokens=20)
    _collect(generator, {}, steps=1)
    _insert(generator, prompt_of(5 * _CHUNK, 52), max_tokens=1)
    for chunk in range(1, 5):
        prompts, answers = generator.next()
        assert [answer.uid for answer in answers] == [talker]
        assert [prompt.progress[0] for prompt in prompts] == [chunk * _CHUNK]


def test_max_tokens_are_each_row_s_own(generator: Any) -> None:
    """Catches one limit for the batch, and a count that is off by one."""
    tokens: dict[int, list[int]] = {}
    uids = {_insert(generator, [length], max_tokens=length): length for length in (3, 1, 5)}
    _collect(generator, tokens)
    assert {uid: len(answer) for uid, answer in tokens.items()} == uids


def test_stop_sequences_are_each_row_s_own(tiny: Tiny, generator: Any) -> None:
    """Catches the next renaming of the argument (`state_machines`, `stop_matchers`, `stop_sequences`), a
    stop token that is held back or ends the neighbours, and an automaton whose state rows share."""
    prompt = prompt_of(5, 55)
    whole = _by_itself(tiny, prompt, 8)
    assert len(set(whole[:5])) == 5
    shared = StopSequences([(whole[4],), (SHAPE.vocabulary - 1,)])
    first = _insert(generator, prompt, 8, stops=StopSequences([(whole[2],)]))
    second, third = (_insert(generator, prompt, 8, stops=shared) for _ in range(2))
    plain = _insert(generator, prompt, 8, stops=StopSequences([]))
    tokens: dict[int, list[int]] = {}
    reasons: dict[int, str] = {}
    for _ in range(20):
        for answer in generator.next()[1]:
            tokens.setdefault(answer.uid, []).append(answer.token)
            if answer.finish_reason:
                reasons[answer.uid] = answer.finish_reason
    assert tokens == {first: whole[:3], second: whole[:5], third: whole[:5], plain: whole}
    assert reasons == {first: "stop", second: "stop", third: "stop", plain: "length"}


def test_stop_wins_over_length(tiny: Tiny, generator: Any) -> None:
    """Catches another order of the two checks: a last token that is a stop token is "stop"."""
    whole = _by_itself(tiny, [1, 2, 3], 3)
    _insert(generator, [1, 2, 3], 3, stops=StopSequences([(whole[2],)]))
    reasons = [answer.finish_reason for _ in range(8) for answer in generator.next()[1]]
    assert reasons == [None, None, "stop"]


@pytest.mark.parametrize("lived", range(12))
def test_remove_works_in_every_stage(tiny: Tiny, generator: Any, lived: int) -> None:
    """Catches a `remove` that forgets a stage (queued, in prefill, decoding), or leaves the neighbours'
    caches, tokens or samplers one row off."""
    tokens: dict[int, list[int]] = {}
    prompts = [prompt_of(length, 56) for length in (3, 5 * _CHUNK, 2, 3 * _CHUNK + 1)]
    uids = [_insert(generator, prompt, 7) for prompt in prompts[:3]]
    _collect(generator, tokens, steps=lived)
    assert len(tokens.get(uids[1], [])) < 7, "it has ended before it could be removed"
    generator.remove([uids[1]])
    removed_with = len(tokens.get(uids[1], []))
    uids.append(_insert(generator, prompts[3], 7))
    _collect(generator, tokens)
    for at in (0, 2, 3):
        assert tokens[uids[at]] == _by_itself(tiny, prompts[at], 7)
    assert len(tokens.get(uids[1], [])) == removed_with
    assert generator.prompt_cache_nbytes == 0


def test_nobody_s_cache_is_nothing(generator: Any) -> None:
    """Catches a cache that stays when the last row leaves, by itself or removed: `kv_bytes` is 0 then,
    and more than 0 while a row has been read."""
    assert generator.prompt_cache_nbytes == 0
    uid = _insert(generator, [1, 2, 3], 4)
    assert generator.prompt_cache_nbytes == 0
    _collect(generator, {}, steps=1)
    assert generator.prompt_cache_nbytes > 0
    generator.remove([uid])
    assert generator.prompt_cache_nbytes == 0
    _insert(generator, [1, 2, 3], 4)
    _collect(generator, {})
    assert generator.prompt_cache_nbytes == 0


def test_nothing_to_do_is_nothing_done(generator: Any) -> None:
    """Catches a `next` that waits or raises when there is no row."""
    assert generator.next() == ([], [])


def test_unusable_requests_are_refused_before_anything_changes(generator: Any) -> None:
    """Catches a half-done `insert`. (Ids outside the vocabulary are accepted and read garbage from the
    embedding: `_refuse_unusable` has to look at them itself.)"""
    for prompt, max_tokens in [([], 5), ([1], 0)]:
        with pytest.raises(ValueError, match=r"empty prompt|max_tokens must be > 0"):
            _insert(generator, prompt, max_tokens)
    assert generator.next() == ([], [])


def test_prompts_are_not_changed(generator: Any) -> None:
    """Catches an `insert` that consumes the caller's list: a Submit may be read again."""
    prompt = prompt_of(3 * _CHUNK, 57)
    before = list(prompt)
    _insert(generator, prompt, 3)
    _collect(generator, {})
    assert prompt == before


def test_load_model_gives_a_model_and_its_config(tiny: Tiny) -> None:
    """Catches another answer of `load_model`, and a cache whose layers do not show `keys` and `values`
    in four dimensions: `kv_bytes_per_token` is measured there."""
    model, config = load_model(tiny.folder, lazy=True)
    assert config["model_type"] == "qwen3"
    cache = make_prompt_cache(model)
    logits = model(mx.array([[0]]), cache=cache)
    assert logits.shape == (1, 1, SHAPE.vocabulary)
    assert len(cache) == SHAPE.layers
    assert all(layer.keys.ndim == 4 and layer.keys.shape[2] == 256 for layer in cache)


class _Spied:
    """A layer of a row before it joins; counts the calls of its methods."""

    nbytes = 0

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.merged_with: list[int] = []

    def merge(self, rows: list[_Spied]) -> Any:
        self.merged_with.append(len(rows))
        return self.layer.merge([row.layer for row in rows])

    def size(self) -> int:
        return 0


def test_the_first_row_s_caches_are_merged_when_it_joins_and_not_before(tiny: Tiny, generator: Any) -> None:
    """Catches a copy of the list, which would undo what is made ready anew until a row joins, and a merge
    that asks another row or earlier: our rows begin from kept prefixes there."""
    given: list[list[Any]] = [[_Spied(layer) for layer in make_prompt_cache(tiny.model)] for _ in range(2)]
    replaced = [[_Spied(layer) for layer in make_prompt_cache(tiny.model)] for _ in range(2)]
    generator.insert_segments([[[1, 2]], [[3, 4]]], max_tokens=[2, 2], caches=given, all_tokens=[[], []])
    for old, new in zip(given, replaced, strict=True):
        old[:] = new
    assert not any(spied.merged_with for layers in replaced for spied in layers)
    generator.next()
    assert [spied.merged_with for spied in replaced[0]] == [[2]] * len(replaced[0])
    assert not any(spied.merged_with for spied in replaced[1])


def test_chunk_and_rows_are_read_at_each_step(generator: Any) -> None:
    """Catches values that are fixed at the start: a step's budget is said through them. What waits is a
    deque of tuples with uid and segments first, and may be put into another order."""
    _insert(generator, prompt_of(60, 1))
    _insert(generator, prompt_of(60, 2))
    first, second = (sequence[0] for sequence in generator._unprocessed_sequences)
    assert [sum(map(len, sequence[1])) for sequence in generator._unprocessed_sequences] == [60, 60]
    generator._unprocessed_sequences.reverse()
    generator.prefill_batch_size, generator.prefill_step_size = 1, 7
    assert [(prompt.uid, prompt.progress) for prompt in generator.next()[0]] == [(second, (7, 60))]
    generator.prefill_batch_size, generator.prefill_step_size = 2, 5
    reported = [(prompt.uid, prompt.progress) for prompt in generator.next()[0]]
    assert reported == [(second, (12, 60)), (first, (5, 60))]
    assert generator._find_uids([first, second]) == {second: (1, 0), first: (1, 1)}


def test_a_segment_s_end_is_reported(generator: Any) -> None:
    """Catches a chunk across a boundary: states are kept at segments' ends, and before the last token."""
    generator.prefill_step_size = 16
    (uid,) = generator.insert_segments([[prompt_of(20, 1), prompt_of(5, 2)]], max_tokens=[2])
    reported: list[tuple[int, bool, bool]] = []
    while not reported or not reported[-1][2]:
        reported += [(p.progress[0], p.end_of_segment, p.end_of_prompt) for p in generator.next()[0]]
    assert reported == [
        (16, False, False),
        (20, True, False),
        (24, True, False),
        (25, True, True),
    ]
    layers, tokens = generator.extract_cache([uid])[uid]
    assert len(tokens) == layers[0].size() == 25


def test_an_ended_row_hands_over_all_that_it_computed(generator: Any) -> None:
    """Catches tokens and caches of different lengths: the caches of an ended answer are stored by its
    tokens."""
    prompt = prompt_of(12, 3)
    _insert(generator, prompt, max_tokens=4)
    ended = [answer for _ in range(30) for answer in generator.next()[1] if answer.finish_reason]
    (answer,) = ended
    assert len(answer.all_tokens) == len(prompt) + 4 == answer.prompt_cache[0].size()


def test_a_turned_rings_mask_for_a_chunk_hides_a_token() -> None:
    """A ring of 8 that single tokens have turned: the mask that upstream makes for the next 4 tokens is not
    that of the ordered ring, which `PrefillBatch._order_rings` makes. When this fails, that method can go."""
    masks = []
    for ordered in (False, True):
        ring = BatchRotatingKVCache(8, [3, 0])
        for tokens in (7, 1, 1, 1):
            ring.update_and_fetch(mx.zeros((2, 1, tokens, 4)), mx.zeros((2, 1, tokens, 4)))
        assert ring.rotated
        if ordered:
            ring._temporal_order()
        masks.append(ring.make_mask(4))
    hidden = mx.not_equal(*masks)
    assert hidden.sum() == 1
    assert hidden[0, 0, 0, 0], "the oldest token of the row that is shorter"
