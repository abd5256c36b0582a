"""What crosses the link: token ids as one binary value each, and nothing else of a length that a client
chooses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import inspect

from scheduler.shared.messages import FromEngine, ToEngine

_BOUNDED = {
    "GrammarTokenizer.eos_token_ids": "the tokenizer's",
    "ThinkingBudget.start": "a mark",
    "ThinkingBudget.end": "a mark",
    "ThinkingBudget.call_start": "a mark",
    "ThinkingBudget.call_end": "a mark",
    "ThinkingBudget.blanks": "the tokenizer's",
    "Submit.stop_token_ids": "256, and the model's",
    "Submit.boundaries": "MOST_BOUNDARIES",
    "Submit.labels": "26",
    "PrefixReport.head": "Inspect.head_tokens, which an operator chooses",
    "Begun.requests": "slots and lookahead",
}
"""Lists of whole numbers, of which each takes 36 bytes of objects and a call to read, and what bounds
them."""


def lists_of_ids(kind: Any) -> Iterator[str]:
    """Yield the fields that are lists of whole numbers, of all structs in a type."""
    seen: set[type] = set()
    waiting = [inspect.type_info(kind)]
    while waiting:
        match waiting.pop():
            case inspect.UnionType(types=types):
                waiting.extend(types)
            case inspect.StructType(cls=cls, fields=fields) if cls not in seen:
                seen.add(cls)
                for field in fields:
                    yield from (f"{cls.__name__}.{field.name}" for _ in _ids(field.type))
                    waiting.append(field.type)
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                waiting.append(item)
            case inspect.DictType(key_type=key, value_type=value):
                waiting += [key, value]
            case inspect.TupleType(item_types=items):
                waiting.extend(items)
            case _:
                pass


def _ids(kind: inspect.Type) -> Iterator[inspect.Type]:
    match kind:
        case inspect.UnionType(types=types):
            for one in types:
                yield from _ids(one)
        case (
            inspect.ListType(item_type=inspect.IntType()) | inspect.VarTupleType(item_type=inspect.IntType())
        ):
            yield kind
        case _:
            pass


def test_token_ids_of_any_number_are_one_binary_value() -> None:
    assert set(lists_of_ids(ToEngine | FromEngine)) == _BOUNDED.keys()
