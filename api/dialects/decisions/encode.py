"""Answers to decisions, in both APIs' forms. A refusal is never invented: the model was not asked for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.dialects.decisions.questions import Distribution
from api.dialects.decisions.schema import (
    AnyQuestion,
    ChoiceQuestion,
    NamedChoice,
    NamedQuestion,
    Noul,
    Predicate,
    Scale,
    ScoreQuestion,
)
from scheduler.events import Finished, Usage


def decision_object(
    model: str, asked: Sequence[AnyQuestion], found: Sequence[Distribution], ends: Sequence[Finished]
) -> dict[str, Any]:
    used = _used(ends)
    return {
        "model": model,
        "answers": [_answer(one, it) for one, it in zip(asked, found, strict=True)],
        "usage": {
            "input_tokens": used.prompt_tokens,
            "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.prompt_tokens,
        },
    }


def _answer(asked: AnyQuestion, found: Distribution) -> dict[str, Any]:
    """`label_mass` is ours (`Distribution.mass`)."""
    head = {"type": asked.type, "name": asked.name, "label_mass": found.mass}
    match asked:
        case Predicate():
            return {**head, "probability": found.shares[0]}
        case ChoiceQuestion(choices=choices):
            return {
                **head,
                "choice": choices[found.best].value,
                "confidence": found.peak,
                "probabilities": [
                    {"value": one.value, "probability": share}
                    for one, share in zip(choices, found.shares, strict=True)
                ],
            }
        case ScoreQuestion(levels=levels):
            return {
                **head,
                "score": found.position,
                "confidence": found.nearness,
                "probabilities": [
                    {"value": at, "label": one.label, "probability": share}
                    for at, (one, share) in enumerate(zip(levels, found.shares, strict=True))
                ],
            }


def system_one_object(
    model: str,
    asked: Mapping[str, NamedQuestion],
    found: Sequence[Distribution],
    ends: Sequence[Finished],
) -> dict[str, Any]:
    used = _used(ends)
    return {
        "model": model,
        "answers": {
            name: _named_answer(one, it) for (name, one), it in zip(asked.items(), found, strict=True)
        },
        "usage": {
            "input_tokens": used.prompt_tokens,
            "output_tokens": 0,
            "cached_tokens": used.cached_tokens,
        },
    }


def _named_answer(asked: NamedQuestion, found: Distribution) -> dict[str, Any]:
    head = {"type": asked.type, "label_mass": found.mass}
    match asked:
        case Noul():
            return {**head, "noul": found.shares[0]}
        case NamedChoice(criteria=criteria):
            names = list(criteria)
            return {
                **head,
                "choice": names[found.best],
                "confidence": found.peak,
                "probabilities": dict(zip(names, found.shares, strict=True)),
            }
        case Scale(criteria=levels):
            return {
                **head,
                "score": found.position,
                "confidence": found.nearness,
                "legend": {str(at): level for at, level in enumerate(levels)},
                "probabilities": {str(at): share for at, share in enumerate(found.shares)},
            }


def _used(ends: Sequence[Finished]) -> Usage:
    """Return the tokens of all prompts that were read, and how many of them were in the prefix cache."""
    usages = [end.usage for end in ends]
    return Usage(
        sum(one.prompt_tokens for one in usages),
        cached_tokens=sum(one.cached_tokens for one in usages),
        output_tokens=0,
    )
