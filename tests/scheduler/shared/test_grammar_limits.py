"""One set of limits for both processes, wide enough for what agents send on a vocabulary of a real size."""

from __future__ import annotations

import itertools
import json
import random
import string
from functools import cache
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from scheduler.shared import grammar_limits
from scheduler.shared.grammar_limits import parser_limits

_SIZE = 150_000
_TEXT: dict[str, Any] = {"type": "string"}


class _Words:
    """A tokenizer that the library can read: bytes, pairs of any ASCII, and words of letters."""

    eos_token_id = _SIZE - 1
    bos_token_id = None
    special_token_ids = (_SIZE - 1,)

    def __init__(self) -> None:
        letters = string.ascii_lowercase
        words = itertools.chain(
            (bytes([byte]) for byte in range(256)),
            ("".join(pair).encode() for pair in itertools.product(string.printable, repeat=2)),
            (f" {''.join(word)}".encode() for word in itertools.product(letters, repeat=3)),
            ("".join(word).encode() for word in itertools.product(letters, repeat=4)),
        )
        self.tokens = [*itertools.islice(words, _SIZE - 1), b"\xff<end>"]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Words()))


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


_KINDS: list[dict[str, Any]] = [_TEXT, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}]
_SCHEMAS: dict[str, Any] = {
    "any JSON": {},
    "100 optional fields": _object({f"field_{n}": _KINDS[n % 4] for n in range(100)}, []),
    "100 variants": {
        "anyOf": [_object({"type": {"const": f"kind_{n}"}, f"v{n}": _TEXT}) for n in range(100)]
    },
    "60 variants that begin alike": {
        "anyOf": [_object({"text": _TEXT, "note": _TEXT, f"v{n}": _TEXT}) for n in range(60)]
    },
}


def _walk(grammar: str, seed: int, steps: int = 60) -> str:
    """A random answer, mostly of single bytes, so that structure comes soon; the library's complaint."""
    matcher = LLMatcher(_tokenizer(), grammar, log_level=0, limits=parser_limits())
    mask = allocate_token_bitmask(1, _SIZE)
    generator = random.Random(seed)
    for _ in range(steps):
        if matcher.is_error() or matcher.is_stopped():
            break
        fill_next_token_bitmask(matcher, mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: _SIZE - 1])
        if matcher.is_error() or not len(allowed):
            break
        short = allowed[allowed < 256] if generator.random() < 0.7 else allowed
        token = int(generator.choice(short if len(short) else allowed))
        if not matcher.consume_token(token):
            break
    error: str = matcher.get_error()
    return error


@pytest.mark.parametrize("name", _SCHEMAS)
def test_real_schemas_need_less(name: str) -> None:
    """Also with half of the items: the limit is not close."""
    grammar = json.dumps({"grammars": [{"json_schema": _SCHEMAS[name]}]})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grammar_limits, "STEP_MAX_ITEMS", grammar_limits.STEP_MAX_ITEMS // 2)
        assert [_walk(grammar, seed) for seed in range(3)] == [""] * 3
