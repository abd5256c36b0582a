"""The sampling fields of bodies, and the values that they may have, in one place.

Schemas inherit them; decoders, the operator's options, the settings of served names and the reader of
generation_config.json go over them.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

from api.bodies.body import Body

MIN_REPETITION_PENALTY = 0.01
"""Positive logits are divided by it: 0.01 already multiplies each by a hundred."""
MAX_SEED = 2**64 - 1

RepetitionPenalty: TypeAlias = Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=10)]
_TopK: TypeAlias = Annotated[int, Field(ge=-1, le=2**31 - 1), AfterValidator(partial(max, 0))]
"""-1 is vLLM's for 0: nothing is cut off."""


class SamplingFields(Body):
    """OpenAI's fields, and vLLM's extra ones by vLLM's names, which are those of `Sampling`, too."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: _TopK | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), le=MAX_SEED)
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
