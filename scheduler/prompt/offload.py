"""Work that a client's input causes and that takes more than a millisecond: off the event loop, in lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Protocol, TypeVar

from scheduler.prompt.preparation import NewGrammar, Preparation, PreparedRequest
from scheduler.prompt.prompt_size import QUICK_VALUES, is_large
from scheduler.request import GenerationRequest, Prompt

_T = TypeVar("_T")


class Lane(Enum):
    """A lane's work waits for work of the same lane only."""

    PLAIN = auto()
    """Validation, templates, tokenizing: some 100 ms at most."""
    LARGE = auto()
    """The same for inputs that take hundreds of megabytes: one at a time."""
    GRAMMAR = auto()
    """Compiling a grammar that was not compiled lately: one of a tenant at a time."""


class Offload(Protocol):
    """A thread in service, in place in tests (a thread under a virtual clock would let the time jump).

    Within a lane tenants take turns.
    """

    async def __call__(
        self, work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN
    ) -> _T: ...


class PreparationOffLoop:
    """`Preparation`, each part of it in its lane."""

    def __init__(self, preparation: Preparation, offload: Offload) -> None:
        self._preparation = preparation
        self._offload = offload

    async def prepare(self, request: GenerationRequest) -> PreparedRequest:
        """Raises TemplateFailed, PromptTooLong, InvalidRequest."""
        offload, preparation = partial(self._offload, tenant=request.tenant), self._preparation
        lane = await self._lane(request.prompt, request.tenant)
        prepared = await offload(partial(preparation.prepare_known, request), lane=lane)
        if isinstance(prepared, NewGrammar):
            return await offload(partial(preparation.prepare_grammar, prepared), lane=Lane.GRAMMAR)
        return prepared

    async def tokenize(self, prompt: Prompt, tenant: str) -> list[int]:
        """Raises TemplateFailed, InvalidRequest."""
        lane = await self._lane(prompt, tenant)
        return await self._offload(partial(self._preparation.tokenize, prompt), tenant=tenant, lane=lane)

    async def detokenize(self, token_ids: Sequence[int], field: str, tenant: str) -> str:
        """Raises InvalidRequest, of `field`."""
        work = partial(self._preparation.detokenize, token_ids, field)
        return await self._offload(work, tenant=tenant)

    async def _lane(self, prompt: Prompt, tenant: str) -> Lane:
        large = is_large(prompt, max_values=QUICK_VALUES)
        if large is None:
            large = await self._offload(partial(is_large, prompt), tenant=tenant)
        return Lane.LARGE if large else Lane.PLAIN
