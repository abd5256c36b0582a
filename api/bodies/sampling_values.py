"""The valid values of sampling fields, in bodies and in the defaults for fields that a body omits."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

MIN_REPETITION_PENALTY = 0.01
"""Positive logits are divided by it: 0.01 already multiplies each by a hundred."""

Temperature: TypeAlias = Annotated[float, Field(ge=0, le=2)]
TopP: TypeAlias = Annotated[float, Field(gt=0, le=1)]
TopK: TypeAlias = Annotated[int, Field(ge=-1, le=2**31 - 1)]
MinP: TypeAlias = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty: TypeAlias = Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=10)]
PresencePenalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
FrequencyPenalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
