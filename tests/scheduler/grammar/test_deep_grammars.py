"""The deepest grammars that the bound on their size allows end no process: neither the server's nor the
engine's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from scheduler.engine.grammars.constraint import Constraint, allowed_tokens
from scheduler.engine.grammars.grammars import Grammars
from scheduler.shared.messages import MAX_GRAMMAR_BYTES
from scheduler.structure import JsonText
from tests.fakes.byte_tokenizer import VOCABULARY
from tests.scheduler.grammar.schema_walks import parts, vocabulary

STEPS: dict[str, Callable[[Any], Any]] = {
    "reference": lambda inner: inner,
    "property": lambda inner: {"properties": {"a": inner}, "required": ["a"]},
    "others": lambda inner: {"additionalProperties": inner},
    "allOf": lambda inner: {"allOf": [inner]},
}


def chain(step: Callable[[Any], Any], links: int) -> dict[str, Any]:
    definitions = {f"{n}": step({"$ref": f"#/$defs/{n + 1}"}) for n in range(links)}
    return {"$ref": "#/$defs/0", "$defs": {**definitions, f"{links}": {"type": "null"}}}


@pytest.mark.parametrize("step", STEPS)
def test_a_chain_of_references_of_half_the_bytes_of_a_grammar_is_compiled(step: str) -> None:
    """It needs more than a thread's usual 8 MiB of stack. Its masks need none of that."""
    each = len(json.dumps(STEPS[step]({"$ref": "#/$defs/1234"}))) + len('"1234": , ')
    schema = chain(STEPS[step], MAX_GRAMMAR_BYTES // 2 // each)
    part = parts().checked(JsonText(schema, "p"))
    matcher = Grammars(vocabulary()._tokenizer)._compile(json.dumps({"grammars": [part]}))
    (allowed,) = allowed_tokens([constraint := Constraint(matcher.deep_copy())], VOCABULARY)
    assert constraint.failure is None
    assert allowed.any()
