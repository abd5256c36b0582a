"""What the engine loop needs of a model: the seam between our loop and mlx-lm.

Two implementations pass the same contract tests (`tests/contracts/check_backend.py`): `mlx_backend`
(the real one) and `scripted_backend` (tokens by arithmetic, for tests of everything around it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler.link.messages import PrefillOut, Ready, Retired, Submit, TokenOut


class RequestRefused(Exception):
    """This request can never run here; the message is for the client."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. A row that ended has its last token in `tokens` and its end in `retired`."""

    tokens: Sequence[TokenOut]
    prefills: Sequence[PrefillOut]
    retired: Sequence[Retired]


class Backend(Protocol):
    """A running batch. One thread calls it; a row is known by its request id."""

    def describe(self) -> Ready:
        """What was loaded."""
        ...

    def admit(self, submit: Submit) -> None:
        """Join the running batch with the next step. Raises RequestRefused, with nothing changed."""
        ...

    def remove(self, request_id: int) -> None:
        """Leave the batch now and free the row's cache; unknown ids are an error (KeyError)."""
        ...

    def step(self) -> StepResult:
        """One token for each decoding row, one chunk for rows in prefill.

        A row ends by itself at one of its stop tokens or at its `max_tokens`, or alone when
        something of its own breaks. An exception from here means that the whole batch is lost.
        """
        ...

    def kv_bytes(self) -> int:
        """Bytes of key-value cache held by all rows; 0 when there are none."""
        ...
