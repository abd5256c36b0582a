"""The fields of a body that bound the tokens of its answer, of every server (`dialects/spellings.py`)."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

from api.dialects.spellings import TOKEN_BOUND, UNBOUNDED, SpelledFields


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("send a number greater than or equal to 1, or -1 for no bound but the context")
    return value


TokenBound: TypeAlias = Annotated[int, Field(ge=-1), AfterValidator(_not_zero)]


class BoundFields(SpelledFields):
    """Every server's name of the most tokens that the answer may have."""

    max_tokens: TokenBound | None = None
    max_completion_tokens: TokenBound | None = None
    max_output_tokens: TokenBound | None = None
    max_new_tokens: TokenBound | None = None
    n_predict: Annotated[int, Field(ge=-2), AfterValidator(_not_zero)] | None = None


def token_bound_of(body: BoundFields) -> int | None:
    """Return the bound, or None for no bound but the context."""
    bound = TOKEN_BOUND.value_of(body)
    return None if bound == UNBOUNDED else bound
