"""Random walks through the masks of one JSON schema, with the engine's limits."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import numpy as np
from llguidance import LLMatcher

from scheduler.answer.answer_format import PLAIN
from scheduler.grammar.part import Parts
from scheduler.grammar.vocabulary import GrammarVocabulary
from scheduler.shared.grammar_limits import parser_limits
from scheduler.structure import JsonText
from tests.fakes.byte_tokenizer import EOS, VOCABULARY, ByteTokenizer

_LONG = 40
"""Tokens after which a walker looks for the end."""
_LONGEST = 400
_ENDS = (EOS, *b'"}]')


@cache
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(ByteTokenizer(PLAIN).to_json(), VOCABULARY, [EOS])


@cache
def parts() -> Parts:
    return Parts(vocabulary().complaint)


def grammar(schema: Any, *, exact: bool = True, by: Parts | None = None) -> str:
    """The grammar of an answer that is held to `schema`. Raise InvalidRequest with its place."""
    part = (by or parts()).checked(JsonText(schema, "p", exact=exact))
    return json.dumps({"grammars": [part]})


def walk(written: str, seed: int) -> str | None:
    """The text of one walk, or None if it found no end. Raise AssertionError if the answer would have
    failed."""
    matcher = LLMatcher(vocabulary()._tokenizer, written, log_level=0, limits=parser_limits())
    some, tokens = random.Random(seed), bytearray()
    while len(tokens) < _LONGEST:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        assert not matcher.is_error(), (bytes(tokens), matcher.get_error())
        every = np.flatnonzero(np.unpackbits(bits, count=VOCABULARY, bitorder="little"))
        allowed = [int(token) for token in every if token < 256 or token == EOS]
        assert allowed, (bytes(tokens), "no token is allowed")
        ends = [end for end in _ENDS if end in allowed]
        # Names of other properties have no end that a walk would find.
        is_ending = ends and some.random() < (0.95 if len(tokens) > _LONG else 0.4)
        # White space makes walks long, and control characters are spelled in six bytes.
        visible = [token for token in allowed if token > 32 and token != ord("\\")]
        token = some.choice(ends if is_ending else visible or allowed)
        if token == EOS:
            return tokens.decode()
        assert matcher.consume_token(token), matcher.get_error()
        tokens.append(token)
    return None
