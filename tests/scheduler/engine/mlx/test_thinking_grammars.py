"""A thinking budget within a grammar: the end mark is in it wherever it is forced, and the answer fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import jsonschema
import msgspec
import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask

from scheduler.engine.grammars.constraint import Constraint
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import GenerationRequest, Reasoning, Sampling
from scheduler.shared.thinking import ThinkingLimit
from scheduler.structure import JsonText
from tests.fakes.grammar_library import library_of
from tests.scheduler.engine.mlx.grammar_engine import PERSON, Answer, GrammarModel, asked, stopped
from tests.scheduler.grammar.test_answer_grammar import NOTATIONS, preparation
from tests.scheduler.grammar.test_answer_grammar import request as chat

THINKING = Reasoning(enabled=True)


def person(model: GrammarModel, seed: int, tokens: int) -> GenerationRequest:
    return thinks(model, asked(PERSON, seed, 1000, reasoning=THINKING), tokens)


def thinks(model: GrammarModel, request: GenerationRequest, tokens: int) -> GenerationRequest:
    """With a bias a random model opens reasoning whenever it may."""
    [start] = model.preparation.tokenizer.encode("<think>")
    sampling = msgspec.structs.replace(request.sampling, logit_bias=((start, 100.0),))
    return replace(request, sampling=sampling, thinking_tokens=tokens)


def said_after_thinking(model: GrammarModel, answer: Answer) -> tuple[int, str]:
    """How many tokens it reasoned for, and what it said then."""
    budget = answer.prepared.submit.thinking
    assert budget is not None
    limit = ThinkingLimit(budget, answer.tokens)
    end = answer.tokens.index(budget.end[0])
    text = model.preparation.tokenizer.decode(answer.tokens[end + 1 : -1])
    return limit.reasoning_tokens, text.strip()


def test_an_answer_fits_its_schema_after_any_budget(model: GrammarModel) -> None:
    """Forced at any place in a random model's words, in the middle of characters too, in one batch; exact, as
    no random model ends its reasoning by itself so soon. With log-probabilities, and finite ones."""
    engine = model.engine()
    requests = [replace(person(model, seed, seed), top_logprobs=2) for seed in range(24)]
    for request, answer in zip(requests, engine.run(*requests), strict=True):
        assert stopped(answer), answer.retired
        tokens, text = said_after_thinking(model, answer)
        assert tokens == request.thinking_tokens
        jsonschema.validate(json.loads(text), PERSON.schema)
        assert all(entry.chosen > -9999 for entry in answer.logprobs[: tokens + 2])


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0.0), Sampling(temperature=1.0, seed=3)], ids=["greedy", "sampled"]
)
def test_it_goes_on_in_its_grammar_from_any_of_its_tokens(model: GrammarModel, sampling: Sampling) -> None:
    """On another engine: from within the reasoning, and behind the mark."""
    request = thinks(model, replace(person(model, 5, 9), sampling=sampling, max_tokens=60), 9)
    (whole,) = model.engine().run(request)
    assert said_after_thinking(model, whole)[0] == 9
    for answer in model.engine().resume((request, whole.tokens[:done]) for done in (1, 8, 9, 10, 11, 20)):
        assert answer.tokens == whole.tokens


def matcher_of(notation: str, structure: JsonText) -> tuple[LLMatcher, HubTokenizer]:
    prepared_by = preparation(notation)
    prepared = prepared_by.prepare(chat(structure, reasoning=THINKING))
    vocabulary = library_of(prepared_by)
    return LLMatcher(vocabulary._tokenizer, prepared.submit.grammar, log_level=0), prepared_by.tokenizer


CUTS: dict[str, Sequence[int]] = {
    "whole": b"abc",
    "a byte of two": b"ab\xc3",
    "a byte of four": b"a\xf0",
    "three bytes of four": b"\xf0\x9f\xa6",
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("notation", ["hermes", "hermes, its marks mere text", "harmony"])
def test_the_end_mark_may_come_in_the_middle_of_a_character(notation: str, cut: str) -> None:
    """In each notation's marks, token by token and when the whole is taken up again; and then the schema is
    enforced."""
    assert notation in NOTATIONS
    schema = JsonText({"type": "integer"}, "x")
    matcher, tokenizer = matcher_of(notation, schema)
    marks = {mark: token for token, mark in getattr(tokenizer, "marks", {}).items()}
    if notation == "harmony":
        start = [marks["<|channel|>"], *b"analysis", marks["<|message|>"]]
        end = [marks["<|end|>"], marks["<|start|>"], *b"assistant"]
        answer = [marks["<|channel|>"], *b"final", marks["<|message|>"], *b"12"]
    else:
        start = [marks["<think>"]] if marks else [*b"<think>"]
        end = [marks["</think>"]] if marks else [*b"</think>"]
        answer = [*b"12"]
    tokens = [*start, *CUTS[cut], *end, *answer]
    told = Constraint(matcher, cut_by=end[0])
    for position, token in enumerate(tokens):
        told.accept_at(position, token)
        assert told.failure is None
    again = Constraint(matcher_of(notation, schema)[0], tokens, cut_by=end[0])
    assert again.failure is None
    masks = [allocate_token_bitmask(1, 8192) for _ in range(2)]
    for constraint, mask in zip((told, again), masks, strict=True):
        constraint.fill(mask, 0)
    assert np.array_equal(masks[0], masks[1])
    told.accept_at(len(tokens), ord("x"))
    assert told.failure is not None


def test_what_is_not_in_the_grammar_still_fails() -> None:
    """Three tokens are forgotten at most, and only if what follows is in the grammar then."""
    for answer in (b"ab", b"1ab</think>", b"1234</think>"):
        matcher, _ = matcher_of("hermes, its marks mere text", JsonText({"type": "integer"}, "x"))
        assert Constraint(matcher, answer, cut_by=ord("<")).failure is not None
