"""Labels as tokens: a request asks how likely each is where the model's answer begins."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.answer.answer_format import Layout
from scheduler.errors import InvalidRequest
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import GenerationRequest
from scheduler.shared.token_ids import TokenIds, compact

_TAIL_TOKENS = 8
_FINAL = "<|channel|>final<|message|>"


def labelled(
    request: GenerationRequest, prompt: TokenIds, tokenizer: HubTokenizer, *, opens_reasoning: bool
) -> tuple[TokenIds, tuple[int, ...]]:
    """Return the prompt up to its labels, reasoning closed, and each label's first token there: tokenizers
    may read a text otherwise behind another. Raise InvalidRequest where two labels begin with one token."""
    form = tokenizer.answer_format
    before = request.begun
    if form.layout is Layout.HARMONY:
        before = _FINAL + before
    elif form.reasoning is not None and (opens_reasoning or form.reasoning.opens):
        before = f"\n{form.reasoning.end}\n\n{before}"
    tail = tokenizer.decode(prompt[-_TAIL_TOKENS:])
    (begun,) = _behind(tokenizer, tail, [before])
    labels = [ids[0] for ids in _behind(tokenizer, tail + before, request.labels) if ids]
    if len(set(labels)) < len(request.labels):
        raise InvalidRequest(f"the model's tokenizer does not tell the labels {request.labels} apart")
    return prompt + compact(begun), tuple(labels)


def _behind(tokenizer: HubTokenizer, text: str, more: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each of `more` behind `text`."""
    known, *found = tokenizer.encode_all([text, *(text + one for one in more)])
    return [
        ids[len(known) :] if ids[: len(known)] == known else tokenizer.encode(one)
        for ids, one in zip(found, more, strict=True)
    ]
