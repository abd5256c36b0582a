"""The fields of a body that bound the tokens of its answer, of every server (`dialects/spellings.py`)."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field, StrictBool

from api.bodies.body import Body
from api.bodies.fields import Partly, WithoutEffect
from api.dialects.spellings import TOKEN_BOUND, UNBOUNDED, SpelledFields


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("send a number greater than or equal to 1, or -1 for no bound but the context")
    return value


TokenBound: TypeAlias = Annotated[int, Field(ge=-1), AfterValidator(_not_zero)]


_RETENTION = "the prefix cache keeps every prefix until it needs the memory"


class CacheOptions(Body):
    prewarm: StrictBool = False
    mode: Annotated[Any, WithoutEffect(_RETENTION)] = None
    ttl: Annotated[Any, WithoutEffect(_RETENTION, named_unless=())] = None


class BoundFields(SpelledFields):
    """Every server's name of the most tokens that the answer may have."""

    max_tokens: TokenBound | None = None
    max_completion_tokens: TokenBound | None = None
    max_output_tokens: TokenBound | None = None
    max_new_tokens: TokenBound | None = None
    n_predict: Annotated[int, Field(ge=-2), AfterValidator(_not_zero)] | None = None
    prompt_cache_options: Annotated[
        CacheOptions | None, Partly(f"prewarm reads the prompt alone; for the rest, {_RETENTION}")
    ] = None


def token_bound_of(body: BoundFields) -> int | None:
    """Return the bound, or None for no bound but the context; 0 reads the prompt alone."""
    if body.prompt_cache_options is not None and body.prompt_cache_options.prewarm:
        return 0
    bound = TOKEN_BOUND.value_of(body)
    return None if bound == UNBOUNDED else bound
