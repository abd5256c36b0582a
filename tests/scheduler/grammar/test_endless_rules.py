"""What a client's grammar can say that no finite text fits is found before an answer, and named. An answer
that is let in meets nothing but the library's limits."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from scheduler.engine.constraint import Constraint, allowed_tokens
from scheduler.errors import InvalidRequest
from scheduler.shared.grammar_limits import parser_limits
from scheduler.structure import Rules
from tests.examples import examples
from tests.fakes.byte_tokenizer import EOS, VOCABULARY
from tests.scheduler.grammar.schema_walks import parts, vocabulary

CYCLE = '{"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}'
ENDLESS: list[tuple[str, str]] = [
    ('start: "a" | "b" x\nx: "c" x', "line 2: x has no end"),
    ("start: start", "line 1: start has no end"),
    ('start: "a" b?\nb: c+\nc: "x" (b | c)', "line 2: b has no end"),
    ('start: ("a" | b)*\n// "b"\n\nb: "c"\n  | d\nd: "x" ~ 2 d{1,3}', "line 6: d has no end"),
    ('start: "a" X | "b"\nX: /[a-c]+/ & /[d-f]+/', "line 1: X fits no text"),
    ('start: "a" /[^\\s\\S]/ | "b"', "line 1: /[^\\s\\S]/ fits no text"),
    ('start: X Y? ~"a"\nX: "a"\nY: X & ~/a+/', "line 1: Y fits no text"),
    (f'start: "a" %json {CYCLE} | "b"', "line 1: %json.$defs.A.anyOf.0.$ref leads back to itself"),
    ('start: "a" %lark {\n  start: "b" x\n  x: "c" x\n}', "line 3: x has no end"),
    ('start: x::0x0\nx::_ : "y" x::incr(_) "z" | "q" x::set_bit(2) %if ge(_, 3)', "line 2: x has no end"),
    ('root ::= "a" some-List\nsome-List ::= "," some-List', "some-List has no end"),
    ('root ::= "a" root | "b" root', "root has no end"),
]
FINITE = [
    'start: start start | "a" |',
    'start: "a" x?\nx: "(" x ")" | y\ny[capture="q", max_tokens=3]: /[a-z]+/',
    'start: "a" x{0,2} x ~ 0..3\nx: "c" -> c\n  | "b" x',
    # Nothing reaches it.
    'start: "a"\nx: "c" x\nX: /a/ & /b/',
    '%llguidance {"no_forcing": true}\n%import common.INT\n%ignore " "\nstart: INT "a".."c" ~"x"',
    'start: x::0x0\nx::_ : "y" x::incr(_) %if lt(_, 3) | "z"',
    'start: %json {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, true]}}}',
    'root ::= "a" list?\nlist ::= "," list | "."',
]


def refusal(grammar: str) -> str | None:
    try:
        parts().checked(Rules(grammar, "p"))
    except InvalidRequest as refused:
        return str(refused).removeprefix(f"{refused.param}: ")
    return None


@pytest.mark.parametrize(("grammar", "says"), ENDLESS)
def test_what_has_no_end_is_refused_by_its_line_and_name(grammar: str, says: str) -> None:
    found = refusal(grammar)
    assert found is not None
    assert found.startswith(says)


@pytest.mark.parametrize("grammar", FINITE)
def test_what_has_an_end_is_let_in(grammar: str) -> None:
    assert refusal(grammar) is None


def test_a_chain_of_rules_ends_or_does_not() -> None:
    chain = "".join(f"r{n}: r{n + 1}\n" for n in range(900))
    assert refusal(f'start: r0\n{chain}r900: "a"') is None
    assert refusal(f'start: r0\n{chain}r900: "a" start') == (
        "line 1: start has no end, so that no finite text fits it"
    )


Item = tuple[str, str, Any]
Rule = list[list[Item]]
_NAMES = ("start", "a", "b", "c")
_TERMINALS = ('"x"', "/[yz]{1,2}/", "T", "E", f"(%json {CYCLE})")
_LEAST = {"": 1, "?": 0, "*": 0, "+": 1, "{0,2}": 0, "{2,3}": 2, "~2": 2}
_ops = st.sampled_from(sorted(_LEAST))
_leaves = st.one_of(
    st.tuples(st.just("rule"), _ops, st.sampled_from(_NAMES)),
    st.tuples(st.just("rule"), _ops, st.sampled_from(_NAMES[1:])),
    st.tuples(st.just("terminal"), _ops, st.sampled_from(_TERMINALS[:3])),
    st.tuples(st.just("terminal"), _ops, st.sampled_from(_TERMINALS)),
)
_alternatives = st.lists(
    st.lists(
        _leaves
        | st.tuples(
            st.just("group"),
            _ops,
            st.lists(st.lists(_leaves, min_size=1, max_size=2), min_size=1, max_size=2),
        ),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=3,
)
RULES = st.fixed_dictionaries(dict.fromkeys(_NAMES, _alternatives))


def written(rules: dict[str, Rule]) -> str:
    def item(one: Item) -> str:
        kind, op, what = one
        return (f"({body(what)})" if kind == "group" else str(what)) + op

    def body(rule: Rule) -> str:
        return " | ".join(" ".join(map(item, alternative)) for alternative in rule)

    lines = [f"{name}: {body(rule)}" for name, rule in rules.items()]
    return "\n".join([*lines, 'T: "p" | /q+/', "E: /p+/ & /q+/"])


def unfit_names(rules: dict[str, Rule]) -> set[str]:
    """The names, of rules and terminals that can be reached, that no finite text fits."""
    finite: set[str] = set()

    def fits(one: Item) -> bool:
        kind, op, what = one
        if not _LEAST[op]:
            return True
        match kind:
            case "rule":
                return what in finite
            case "terminal":
                return what in _TERMINALS[:3]
            case _:
                return any(all(map(fits, alternative)) for alternative in what)

    for _ in rules:
        finite |= {name for name, rule in rules.items() if any(all(map(fits, one)) for one in rule)}
    reached, todo = set[str](), ["start"]
    while todo:
        if (name := todo.pop()) in reached:
            continue
        reached.add(name)
        items = [one for alternative in rules.get(name, []) for one in alternative]
        while items:
            kind, _, what = items.pop()
            if kind == "group":
                items += [one for alternative in what for one in alternative]
            else:
                todo.append(what)
    return {name for name in reached if name in (rules.keys() - finite) | {*_TERMINALS[3:]}}


def walk(grammar: str, seed: int, most: int = 60) -> Constraint:
    """An answer of random tokens, as the engine holds it."""
    matcher = LLMatcher(
        vocabulary()._tokenizer,
        json.dumps({"grammars": [parts().checked(Rules(grammar, "p"))]}),
        log_level=0,
        limits=parser_limits(),
    )
    constraint, some = Constraint(matcher), random.Random(seed)
    for position in range(most):
        (allowed,) = allowed_tokens([constraint], VOCABULARY)
        if constraint.failure is not None:
            break
        token = some.choice(np.flatnonzero(allowed).tolist())
        if token == EOS:
            break
        constraint.accept_at(position, token)
    return constraint


@given(RULES)
@settings(deadline=None, max_examples=examples(100))
def test_of_small_grammars_exactly_those_without_an_end_are_refused(rules: dict[str, Rule]) -> None:
    """By an oracle that knows the rules, not their text. What is let in fails at limits only, and says so."""
    grammar, unfit = written(rules), unfit_names(rules)
    found = refusal(grammar)
    assert (found is not None) == bool(unfit), (grammar, found)
    if found is not None:
        named = {"%json.$defs.A.anyOf.0.$ref" if name.startswith("(") else name for name in unfit}
        assert found.split(": ")[1].split(" ")[0] in named, (grammar, found)
        return
    for seed in range(2):
        constraint = walk(grammar, seed)
        if constraint.failure is not None:
            assert constraint.at_limit
            assert "(limit " in constraint.failure, (grammar, constraint.failure)
