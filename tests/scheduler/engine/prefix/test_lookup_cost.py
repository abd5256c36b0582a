"""What a lookup in the prefix tree costs: Python operations by edges, and no token compared twice."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.engine.prefix import radix_tree
from scheduler.engine.prefix.radix_tree import RadixTree
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.shared.messages import ScriptedPlan, StepOutput, Submit
from scheduler.shared.token_ids import common_run
from tests.contracts.journal import request
from tests.scheduler.engine.prefix.cached_prompts import cache_of, keep, words
from tests.scheduler.engine.prefix.test_radix_tree import Run, State, at, cut_of, python_lines


def _chain(tree: RadixTree[Run, State], tokens: Sequence[int], step: int) -> None:
    for end in range(step, len(tokens) + 1, step):
        tree.insert(at(tokens[:end]), cut_of(tokens))


def test_a_long_lookup_is_a_bounded_number_of_python_operations() -> None:
    """Hundred thousand tokens cost what hundred do, but for a logarithm; an edge costs a constant."""
    lines: dict[tuple[int, int], int] = {}
    for tokens, edges in ((1_000, 1), (100_000, 1), (100_000, 50)):
        tree: RadixTree[Run, State] = RadixTree()
        prompt = array("I", range(tokens))
        _chain(tree, prompt, tokens // edges)
        diverging = prompt[: tokens // 2] + array("I", [7_000_000]) + prompt[tokens // 2 + 1 :]
        lines[tokens, edges], found = python_lines(tree.match, at(diverging))
        assert found.length == tokens // 2
    assert lines[100_000, 1] <= lines[1_000, 1] + 7 * 5, "twice the tokens are one more bisection"
    assert lines[100_000, 50] <= 100 + 50 * 10


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each comparison was about."""
    counts: list[int] = []

    def counted(left: array[int], start: int, right: array[int], limit: int) -> int:
        counts.append(limit)
        return common_run(left, start, right, limit)

    monkeypatch.setattr(radix_tree, "common_run", counted)
    return counts


def test_what_was_matched_once_is_not_compared_again(compared: list[int]) -> None:
    """From the node that an earlier match reached: only what is new, also after the path to it was split."""
    tree: RadixTree[Run, State] = RadixTree()
    prompt = array("I", range(1_000))
    known = at(prompt)
    _chain(tree, prompt, 250)
    tree.match(known, 600)
    assert sum(compared) >= 600
    tree.insert(at([0, 1, 9]), cut_of([0, 1, 9]))
    compared.clear()
    assert [node.end for node in tree.match(known, 900).path] == [2, 250, 500, 750, 1_000]
    assert sum(compared) == 900 - 500
    assert tree.match(known, 300) == tree.match(at(prompt), 300)
    assert sum(compared) == 900 - 500 + 300, "only the match that knows nothing compares"


def test_an_engine_compares_a_prompt_with_the_tree_once(compared: list[int]) -> None:
    """While it waits for a slot, for its plan, its lease, and for what is put into the cache of it. The next
    turn of a conversation compares what the cache holds of it; its last token is compared when it is kept."""
    backend = ScriptedBackend(ScriptedPlan(), sleep=lambda seconds: None, kv_cache_bytes=1 << 20)
    engine = EngineLoop(backend, 1, PrefillPace(256), lambda: 1.0)

    def ask(*submits: Submit) -> list[int]:
        """Return the tokens of the answers, each request's in order."""
        compared.clear()
        commands, retired, answers = list(submits), 0, dict[int, list[int]]()
        while retired < len(submits):
            for frame in engine.iterate(commands):
                assert isinstance(frame, StepOutput)
                retired += len(frame.retired)
                for one in frame.tokens:
                    answers.setdefault(one.request_id, []).append(one.token)
            commands = []
        return [token for number in sorted(answers) for token in answers[number]]

    prompt = [number % 500 for number in range(3_000)]
    prompt += ask(request(1, prompt))
    assert compared == [], "there was nothing to compare with"
    ask(request(2, [*prompt, *[7] * 100]))
    assert len(prompt) - 1 <= sum(compared) <= len(prompt) + 100
    ask(request(3, [*prompt, *[8] * 100]), request(4, [*prompt, *[9] * 100]))
    assert sum(compared) <= 2 * (len(prompt) + 100)


def test_a_prompt_that_parts_within_an_edge_is_compared_once(compared: list[int]) -> None:
    """Its lease ends where the edge is split, and holds the same as a look from the root finds there."""
    cache = cache_of()
    keep(cache, words(0, 1_000))
    compared.clear()
    prompt = [*words(0, 600), 7_000_000, 7_000_001]
    lease = cache.match_and_lease(at(prompt))
    assert (lease.length, compared) == (600, [601])
    found = cache.match(at(prompt))
    assert (lease.node, lease.pieces, found.inside) == (found.path[-1], found.pieces, False)
