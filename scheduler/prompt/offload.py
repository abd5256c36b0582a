"""Preparation of requests off the event loop, in lanes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, assert_never

from scheduler.offload import Lane, Offload
from scheduler.prepared import Prepared
from scheduler.prompt.preparation import Preparation
from scheduler.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from scheduler.shared.token_ids import TokenIds


class PreparationOffLoop:
    """Runs each part of `Preparation` in its lane."""

    def __init__(self, preparation: Preparation, offload: Offload) -> None:
        self._preparation = preparation
        self._offload = offload

    async def prepare(self, request: GenerationRequest, salt: str, adapter: str) -> Prepared:
        """Raise TemplateFailed, PromptTooLong, InvalidRequest."""
        offload = partial(self._offload, tenant=request.tenant)
        lane = await self._lane(request.prompt, request.tenant)
        prepared = await offload(partial(self._preparation.prepare_known, request, salt, adapter), lane=lane)
        return prepared if isinstance(prepared, Prepared) else await offload(prepared, lane=Lane.GRAMMAR)

    async def tokenize(self, prompt: Prompt, tenant: str, salt: str) -> TokenIds:
        """Raise TemplateFailed, InvalidRequest."""
        lane = await self._lane(prompt, tenant)
        work = partial(self._preparation.tokenize, prompt, salt)
        return await self._offload(work, tenant=tenant, lane=lane)

    async def detokenize(self, token_ids: Sequence[int], field: str, tenant: str) -> str:
        """Return the text of these ids. Raise InvalidRequest, which names `field`."""
        work = partial(self._preparation.detokenize, token_ids, field)
        return await self._offload(work, tenant=tenant)

    async def _lane(self, prompt: Prompt, tenant: str) -> Lane:
        large = is_large(prompt, max_values=QUICK_VALUES)
        if large is None:
            large = await self._offload(partial(is_large, prompt), tenant=tenant)
        return Lane.LARGE if large else Lane.PLAIN


LARGE_CHARACTERS = 1 << 18
"""Tokenizing takes 100 to 200 bytes for each byte of text. Up to this size every core may tokenize one prompt
at a time; beyond it, only one prompt is tokenized at a time."""


QUICK_VALUES = 2048
"""Counting this many takes half a millisecond."""


def is_large(prompt: Prompt, max_values: int | None = None) -> bool | None:
    """Return whether the prompt has more than `LARGE_CHARACTERS` characters; None if that takes more than
    `max_values` values to find out."""
    match prompt:
        case TokenPrompt():
            return False
        case TextPrompt(text=text):
            return len(text) > LARGE_CHARACTERS
        case ChatPrompt():
            tools = [tool.definition() for tool in prompt.offered_tools]
            return _is_large([*prompt.messages, *tools, prompt.template_options], max_values)
        case _:
            assert_never(prompt)


def _is_large(values: list[Any], max_values: int | None) -> bool | None:
    """Return the same for JSON values: each value counts one character, and a string its length as well."""
    characters = seen = 0
    while values and characters <= LARGE_CHARACTERS:
        if seen == max_values:
            return None
        seen += 1
        match values.pop():
            case str() as text:
                characters += len(text)
            case dict() as members:
                values.extend(members)
                values.extend(members.values())
            case list() | tuple() as members:
                values.extend(members)
        characters += 1
    return characters > LARGE_CHARACTERS
