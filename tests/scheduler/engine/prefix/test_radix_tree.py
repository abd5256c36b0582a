"""The radix tree against a dictionary of prefixes, and its rules one by one."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.engine.prefix.nodes import Known, Lease, Match, Node
from scheduler.engine.prefix.radix_tree import RadixTree
from scheduler.shared.token_ids import KEY_BYTES, compact
from tests.examples import examples

P = ParamSpec("P")
T = TypeVar("T")

RUN_BYTES = 3
STATE_BYTES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A segment whose content is its tokens. `grain`: sizes are rounded up to it, as real buffers are."""

    values: tuple[int, ...]
    grain: int = 1

    @property
    def tokens(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return -(-len(self.values) // self.grain) * self.grain * RUN_BYTES

    def split(self, at: int) -> tuple[Run, Run]:
        assert 0 < at < len(self.values)
        return Run(self.values[:at], self.grain), Run(self.values[at:], self.grain)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A snapshot that knows after which tokens it was taken."""

    prefix: tuple[int, ...]
    nbytes: int = STATE_BYTES


def cut_of(tokens: Sequence[int], grain: int = 1) -> Callable[[int, int], Run]:
    return lambda start, end: Run(tuple(tokens[start:end]), grain)


def at(tokens: Sequence[int], salt: str = "") -> Known[Run, State]:
    """These tokens, of which nothing is known yet."""
    return Known(compact(tokens), salt)


def content_of(lease: Lease[Run, State]) -> list[int]:
    """The tokens that a lease really carries."""
    return [token for run, taken in lease.pieces for token in run.values[:taken]]


def python_lines(action: Callable[P, T], *args: P.args, **named: P.kwargs) -> tuple[int, T]:
    """How many lines of Python a call runs, and its result. Counted, not timed."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        result = action(*args, **named)
    finally:
        sys.settrace(previous)
    return lines, result


def longest(held: set[tuple[str, tuple[int, ...]]], salt: str, tokens: Sequence[int], limit: int) -> int:
    """What a match must say, the slow way."""
    return max((n for n in range(1, limit + 1) if (salt, tuple(tokens[:n])) in held), default=0)


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=8)
salts = st.sampled_from(["", "tenant"])


@dataclass
class Row:
    """A running sequence that is matched again and again while more of it is computed."""

    known: Known[Run, State]
    computed: int = 0


class TreeMachine(RuleBasedStateMachine):
    """Any order of inserts, snapshots, leases and removals; a dictionary says what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.splits: list[tuple[Node[Run, State], Node[Run, State]]] = []
        self.tree: RadixTree[Run, State] = RadixTree(lambda upper, lower: self.splits.append((upper, lower)))
        self.held: set[tuple[str, tuple[int, ...]]] = set()
        self.states: dict[tuple[str, tuple[int, ...]], State] = {}
        self.leases: list[tuple[Lease[Run, State], list[int]]] = []
        self.rows: list[Row] = []

    @rule(tokens=prompts, salt=salts)
    def insert(self, tokens: list[int], salt: str) -> None:
        known, calls = longest(self.held, salt, tokens, len(tokens)), list[tuple[int, int]]()

        def cut(start: int, end: int) -> Run:
            calls.append((start, end))
            return Run(tuple(tokens[start:end]))

        node = self.tree.insert(at(tokens, salt), cut)
        assert calls == ([(known, len(tokens))] if known < len(tokens) else [])
        assert node.start < len(tokens) <= node.end
        self.held |= {(salt, tuple(tokens[:n])) for n in range(1, len(tokens) + 1)}
        assert self.tree.insert(at(tokens, salt), cut) is node, "the second time changes nothing"

    @rule(tokens=prompts, salt=salts)
    def insert_what_cannot_be_cut(self, tokens: list[int], salt: str) -> None:
        def cut(start: int, end: int) -> Run:
            raise MemoryError

        if (salt, tuple(tokens)) not in self.held:
            with pytest.raises(MemoryError):
                self.tree.insert(at(tokens, salt), cut)

    @rule(tokens=prompts, salt=salts, limit=st.none() | st.integers(0, 10))
    def match(self, tokens: list[int], salt: str, limit: int | None) -> None:
        match = self.tree.match(at(tokens, salt), limit)
        within = len(tokens) if limit is None else min(limit, len(tokens))
        assert match.length == longest(self.held, salt, tokens, within)
        taken = [token for node in match.path for token in node.segment.values[: match.taken(node)]]
        assert taken == tokens[: match.length]
        assert match.restorable().length == longest(set(self.states), salt, tokens, within)

    @rule(tokens=prompts, salt=salts, length=st.integers(0, 8))
    def cut_a_match_off(self, tokens: list[int], salt: str, length: int) -> None:
        match = self.tree.match(at(tokens, salt))
        length = min(length, match.length)
        assert match.until(length) == Match(self.tree.match(at(tokens, salt), length).path, length)

    @rule(tokens=prompts, salt=salts)
    def start_a_row(self, tokens: list[int], salt: str) -> None:
        self.rows.append(Row(at(tokens, salt)))

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), more=st.integers(0, 3))
    def match_a_row_again(self, data: st.DataObject, more: int) -> None:
        row = data.draw(st.sampled_from(self.rows))
        row.computed = min(row.computed + more, len(row.known.tokens))
        match = self.tree.match(row.known, row.computed)
        assert match == self.tree.match(at(row.known.tokens, row.known.salt), row.computed)
        assert match.whole is None or match.whole.end <= match.length
        assert match.whole is None or row.known.node is not None

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), end=st.integers(1, 8))
    def keep_of_a_row(self, data: st.DataObject, end: int) -> None:
        row = data.draw(st.sampled_from(self.rows))
        kept, salt = row.known.tokens[:end], row.known.salt
        node = self.tree.insert(row.known, cut_of(kept), len(kept))
        self.held |= {(salt, tuple(kept[:n])) for n in range(1, len(kept) + 1)}
        match = self.tree.match(at(kept, salt))
        assert (match.length, match.path[-1]) == (len(kept), node)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), end=st.integers(1, 8))
    def attach_to_a_row(self, data: st.DataObject, end: int) -> None:
        row = data.draw(st.sampled_from(self.rows))
        place = row.known.salt, tuple(row.known.tokens[:end])
        state = State(place[1])
        node = self.tree.attach(row.known, state, len(place[1]))
        assert (node is not None) == (place in self.held and place not in self.states)
        if node is not None:
            assert self.path_of(node) == place[1]
            self.states[place] = state

    @rule(tokens=prompts, salt=salts)
    def attach(self, tokens: list[int], salt: str) -> None:
        place, state = (salt, tuple(tokens)), State(tuple(tokens))
        node = self.tree.attach(at(tokens, salt), state)
        assert (node is not None) == (place in self.held and place not in self.states)
        if node is not None:
            assert (node.end, node.snapshot) == (len(tokens), state)
            self.states[place] = state

    @rule(tokens=prompts, salt=salts)
    def lease(self, tokens: list[int], salt: str) -> None:
        self.leases.append((self.tree.lease(self.tree.match(at(tokens, salt))), tokens))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.tree.release(lease)
        assert (lease.pieces, lease.snapshot, lease.node) == ((), None, None)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        leaves = [node for node in self.tree.walk() if not node.children and not node.pins]
        if leaves:
            node = data.draw(st.sampled_from(leaves))
            whole = self.path_of(node)
            gone = {(node.salt, whole[:n]) for n in range(node.start + 1, node.end + 1)}
            self.tree.remove(node)
            self.held -= gone
            self.states = {place: state for place, state in self.states.items() if place not in gone}

    def path_of(self, node: Node[Run, State]) -> tuple[int, ...]:
        above = [*self.tree.parents(node)][::-1]
        return tuple(token for each in (*above, node) for token in each.segment.values)

    @invariant()
    def holds_what_the_dictionary_says(self) -> None:
        held, states = set(), {}
        for node in self.tree.walk():
            whole = self.path_of(node)
            assert list(node.segment.values) == list(node.tokens)
            held |= {(node.salt, whole[:n]) for n in range(node.start + 1, node.end + 1)}
            if node.snapshot is not None:
                states[node.salt, whole] = node.snapshot
        assert held == self.held
        assert states == self.states

    @invariant()
    def counts_exactly(self) -> None:
        inside = {id(node.segment) for node in self.tree.walk()}
        replaced = {
            id(run): run for lease, _ in self.leases for run, _ in lease.pieces if id(run) not in inside
        }
        now = self.tree
        assert now.nodes == len(list(self.tree.walk()))
        assert now.tokens == len(self.held)
        assert now.segment_bytes == RUN_BYTES * len(self.held)
        assert now.snapshots == len(self.states)
        assert now.snapshot_bytes == STATE_BYTES * len(self.states)
        assert now.replaced_bytes == sum(run.nbytes for run in replaced.values())
        assert self.tree.nbytes == (
            (RUN_BYTES + KEY_BYTES) * len(self.held) + STATE_BYTES * len(self.states) + now.replaced_bytes
        )
        assert self.tree.check_integrity() == []

    @invariant()
    def leases_lose_nothing(self) -> None:
        for lease, tokens in self.leases:
            assert content_of(lease) == tokens[: lease.length]
            if lease.node is not None:
                assert lease.node.start < lease.length <= lease.node.end, "no more is kept than is needed"


TestRadixTree = TreeMachine.TestCase
TestRadixTree.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)


def test_edges_keep_tokens_compactly_and_share_none_with_the_caller() -> None:
    """Four bytes a token; a prompt that is reused afterwards does not change what is held."""
    tree: RadixTree[Run, State] = RadixTree()
    prompt = array("I", [1, 2, 3])
    assert compact(prompt) is prompt
    tree.insert(at(prompt), cut_of([1, 2, 3]))
    prompt[0] = 9
    assert tree.match(at([1, 2, 3])).length == 3
    assert [(node.tokens.typecode, node.tokens.itemsize) for node in tree.walk()] == [("I", KEY_BYTES)]


def test_a_split_under_leases_is_paid_for_until_the_last_is_released() -> None:
    """Both halves own their bytes, and two leases may still hold the whole."""
    tree: RadixTree[Run, State] = RadixTree()
    tree.insert(at([1, 2, 3, 4]), cut_of([1, 2, 3, 4]))
    short, long = tree.lease(tree.match(at([1, 2, 9]))), tree.lease(tree.match(at([1, 2, 3, 4])))
    tree.insert(at([1, 2, 8]), cut_of([1, 2, 8]))
    assert tree.replaced_bytes == 4 * RUN_BYTES
    assert (content_of(short), content_of(long)) == ([1, 2], [1, 2, 3, 4])
    tree.release(long)
    assert tree.replaced_bytes == 4 * RUN_BYTES
    tree.remove(next(node for node in tree.walk() if node.end == 4))  # The short one needs nothing of it.
    tree.release(short)
    assert tree.replaced_bytes == 0
    assert tree.check_integrity() == []


def test_a_lease_moves_up_with_every_cut_that_it_does_not_need() -> None:
    """Also with the second, when it still holds the segment from before the first."""
    tree: RadixTree[Run, State] = RadixTree()
    tree.insert(at([1, 2, 3]), cut_of([1, 2, 3]))
    lease = tree.lease(tree.match(at([1, 2])))
    for position in (1, 2):
        tree.attach(at([1, 2, 3][:position]), State(()))
        assert lease.node is not None
        assert (lease.node.end, lease.node.pins) == (3 if position == 1 else 2, 1)
    tree.remove(next(node for node in tree.walk() if node.end == 3))
    assert content_of(lease) == [1, 2]
    assert tree.check_integrity() == []


def test_a_lease_that_ends_inside_an_edge_has_no_snapshot() -> None:
    """The state at the end of the edge is one of other tokens."""
    tree: RadixTree[Run, State] = RadixTree()
    tree.insert(at([1, 2, 3]), cut_of([1, 2, 3]))
    tree.attach(at([1, 2, 3]), State((1, 2, 3)))
    assert tree.lease(tree.match(at([1, 2, 4]))).snapshot is None
    assert tree.lease(tree.match(at([1, 2, 3]))).snapshot is not None


def test_the_fullest_path_and_the_leaves_below() -> None:
    """The path with most snapshots through a node, shallow first; leaves are counted for every node."""
    tree: RadixTree[Run, State] = RadixTree()
    for tokens in (
        [1, 2, 3, 4],
        [1, 2, 5],
        [1, 2, 5, 6, 7],
        *([8] * n for n in range(1, 9)),
        [8, 9],
        [8, 9, 9],
    ):
        tree.insert(at(tokens), cut_of(tokens))
    for tokens in ([1], [1, 2, 3], [1, 2, 5], [1, 2, 5, 6], [1, 2, 5, 6, 7], [8, 9], [8, 9, 9]):
        tree.attach(at(tokens), State(tuple(tokens)))
    by_end = {(node.end, node.tokens[-1]): node for node in tree.walk()}
    assert [node.end for node in tree.fullest_path(by_end[1, 1])] == [1, 3, 4, 5]
    assert [node.end for node in tree.fullest_path(by_end[3, 3])] == [1, 3]
    assert [node.end for node in tree.fullest_path(by_end[1, 8])] == [2, 3], "not the path with most nodes"
    leaves = tree.leaves_below()
    assert (leaves[by_end[1, 1]], leaves[by_end[3, 5]], leaves[by_end[4, 4]]) == (2, 1, 1)
