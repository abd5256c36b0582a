"""A request's prompt as token ids, and the bounds it must keep, before anything is queued."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from scheduler.errors import InvalidRequest, PromptTooLong
from scheduler.prompt.boundaries import boundaries_of
from scheduler.prompt.model_folder import ModelFolder
from scheduler.prompt.tokenizer import Tokenizer
from scheduler.request import GenerationRequest

_T = TypeVar("_T")
Offload = Callable[[Callable[[], _T]], Awaitable[_T]]
"""Runs CPU work where it does not stall the streams: a thread in service, in place in tests (a
thread under a virtual clock would let the time jump)."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that the engine can take as it is."""

    request: GenerationRequest
    prompt: list[int]
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    system_tokens: int = 0
    """Where the system prompt ends; 0: there is none."""


class Preparation:
    """What is known of the model on this side of the link."""

    def __init__(self, tokenizer: Tokenizer, folder: ModelFolder) -> None:
        self.tokenizer = tokenizer
        self._context_tokens = folder.context_tokens
        self._vocabulary = folder.vocabulary
        self._special_token_ids = tokenizer.special_token_ids
        self._eos_token_ids = tuple(sorted(folder.eos_token_ids | tokenizer.eos_token_ids))

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    def prepare(self, request: GenerationRequest) -> PreparedRequest:
        """Render, tokenize, check. Takes about 2 ms per 1,000 tokens: call it off the event loop.

        Raises TemplateFailed, PromptTooLong, InvalidRequest.
        """
        self._check_bias(request)
        text = self.tokenizer.render(request.prompt.messages, request.prompt.template_options)
        if not _is_unicode(text):
            raise InvalidRequest("the messages hold a lone surrogate: no character", param="messages")
        prompt = self.tokenizer.encode(text)
        if not prompt:
            raise InvalidRequest("the prompt is empty", param="messages")
        boundaries = boundaries_of(prompt, self._special_token_ids)
        has_system = request.prompt.messages[:1] and request.prompt.messages[0]["role"] == "system"
        return PreparedRequest(
            request=request,
            prompt=prompt,
            max_tokens=self._fit(len(prompt), request.max_tokens),
            stop_token_ids=() if request.ignore_eos else self._eos_token_ids,
            boundaries=boundaries,
            system_tokens=boundaries[0] if has_system and boundaries else 0,
        )

    def _fit(self, prompt_tokens: int, max_tokens: int | None) -> int:
        room = self._context_tokens - prompt_tokens
        if room < 1:
            raise PromptTooLong(
                f"the prompt has {prompt_tokens} tokens and the model's context is {self._context_tokens}:"
                " no room is left for an answer",
                param="messages",
            )
        if max_tokens is not None and max_tokens > room:
            raise PromptTooLong(
                f"the prompt has {prompt_tokens} tokens and max_tokens asks for {max_tokens} more,"
                f" but the model's context is {self._context_tokens}",
                param="max_tokens",
            )
        return room if max_tokens is None else max_tokens

    def _check_bias(self, request: GenerationRequest) -> None:
        for token, _ in request.sampling.logit_bias:
            if not 0 <= token < self._vocabulary:
                raise InvalidRequest(
                    f"logit_bias names token {token}, outside the vocabulary of {self._vocabulary}",
                    param="logit_bias",
                )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
