"""Preparation of requests off the event loop, in lanes: it may take longer than a millisecond."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, assert_never

from scheduler.prompt.preparation import NewGrammar, Preparation, PreparedRequest
from scheduler.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from scheduler.statistics import PieceStatistics, TextStatistics
from scheduler.token_ids import TokenIds

_T = TypeVar("_T")


class Lane(Enum):
    """Work waits only for work of the same lane."""

    PLAIN = auto()
    """Validation, templates, tokenizing: at most about 100 ms."""
    LARGE = auto()
    """The same for inputs that take hundreds of megabytes of memory: one at a time."""
    ANSWER = auto()
    """Reading what is long of an answer: one at a time."""
    GRAMMAR = auto()
    """Compiling a grammar that is not cached: one per tenant at a time."""


class Offload(Protocol):
    """Runs work in a thread, or in place in tests (a virtual clock would jump while a thread works).

    Within a lane tenants are served round robin.
    """

    async def __call__(
        self, work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN
    ) -> _T: ...


class Elsewhere(Protocol):
    """Holds a body's conversation or a chat's messages in another process, which has a `Preparation` of the
    same model."""

    async def run(self, work: Callable[..., _T], /, *args: Any) -> _T:
        """Return `work(what it holds, *args)`, called there. `work` is a function of a module. Raise what it
        raises, PreparationFailure or Unavailable."""
        ...

    def drop(self) -> None:
        """Forget the messages."""
        ...


@dataclass(frozen=True, slots=True)
class RemoteChat(ChatPrompt):
    """A chat of which this process has all but the messages."""

    at: Elsewhere = field(kw_only=True, compare=False, repr=False)


def _prepared(chat: ChatPrompt, preparation: Preparation, request: GenerationRequest) -> PreparedRequest:
    """Called where the messages are. What came without them goes back without them."""
    prepared = preparation.prepare_prompt(replace(request, prompt=chat))
    return replace(prepared, request=request)


def _tokenized(chat: ChatPrompt, preparation: Preparation, salt: str) -> TokenIds:
    return preparation.tokenize(chat, salt)


_NO_PROMPT = TokenPrompt(())


class PreparationOffLoop:
    """`Preparation`, each part in its lane, or where the messages are."""

    def __init__(self, preparation: Preparation, offload: Offload) -> None:
        self._preparation = preparation
        self._offload = offload

    async def prepare(self, request: GenerationRequest) -> PreparedRequest:
        """Raises TemplateFailed, PromptTooLong, InvalidRequest, and what `Elsewhere.run` does."""
        offload, preparation = partial(self._offload, tenant=request.tenant), self._preparation
        if isinstance(request.prompt, RemoteChat):
            prepared = await self._prepare_there(request, request.prompt)
        else:
            lane = await self._lane(request.prompt, request.tenant)
            prepared = await offload(partial(preparation.prepare_known, request), lane=lane)
        if isinstance(prepared, NewGrammar):
            return await offload(partial(preparation.prepare_grammar, prepared), lane=Lane.GRAMMAR)
        return prepared

    async def _prepare_there(
        self, request: GenerationRequest, chat: RemoteChat
    ) -> PreparedRequest | NewGrammar:
        """The grammar is added here, where those of all requests are kept."""
        without = replace(request, prompt=_NO_PROMPT)
        try:
            prepared = await chat.at.run(_prepared, self._preparation, without)
        finally:
            chat.at.drop()
        prepared = replace(prepared, request=request)
        if not self._preparation.wants_grammar(request):
            return prepared
        work = partial(self._preparation.add_known_grammar, prepared)
        return await self._offload(work, tenant=request.tenant)

    async def tokenize(self, prompt: Prompt, tenant: str, salt: str) -> TokenIds:
        """Raises TemplateFailed, InvalidRequest, and what `Elsewhere.run` does."""
        if isinstance(prompt, RemoteChat):
            try:
                return await prompt.at.run(_tokenized, self._preparation, salt)
            finally:
                prompt.at.drop()
        lane = await self._lane(prompt, tenant)
        work = partial(self._preparation.tokenize, prompt, salt)
        return await self._offload(work, tenant=tenant, lane=lane)

    async def detokenize(self, token_ids: Sequence[int], field: str, tenant: str) -> str:
        """Raises InvalidRequest, of `field`."""
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
    """Whether the prompt has more than `LARGE_CHARACTERS` characters; None if that takes more than
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
    """The same for JSON values: a string counts its length, every value at least one."""
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


CachesElsewhere: TypeAlias = Callable[[], tuple[PieceStatistics, TextStatistics]]
"""What other processes keep of a model's prompts."""


def no_caches() -> tuple[PieceStatistics, TextStatistics]:
    return PieceStatistics(), TextStatistics()


def prompt_caches(
    preparation: Preparation, elsewhere: CachesElsewhere
) -> tuple[PieceStatistics, TextStatistics]:
    """What all processes keep of a model's prompts, this one among them."""
    pieces, texts = preparation.pieces.statistics(), preparation.tokenizer.text_statistics()
    more_pieces, more_texts = elsewhere()
    return (
        PieceStatistics(
            pieces.tokens + more_pieces.tokens,
            pieces.kept_tokens + more_pieces.kept_tokens,
            pieces.held_bytes + more_pieces.held_bytes,
        ),
        TextStatistics(
            texts.whole,
            texts.messages + more_texts.messages,
            texts.kept_messages + more_texts.kept_messages,
            texts.held_bytes + more_texts.held_bytes,
        ),
    )
