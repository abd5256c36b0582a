"""The accepted bodies: rankings in Jina's, Cohere's and vLLM's form, scores in vLLM's and in SGLang's.
Unsupported fields are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, model_validator

from api.bodies.body import Body
from api.bodies.unsupported import RERANK
from api.dialects.completions.schema import PromptItem, in_list
from api.dialects.readings import ReadingRequest
from scheduler.request import TextPrompt, TokenPrompt

MAX_DOCUMENTS = 2048
MAX_QUERY_CHARACTERS = 1 << 15
"""Bound on the query, of which each document's prompt has a copy while it waits and runs."""
MAX_PREFIX_CHARACTERS = 1 << 18
"""Bound on what stands before or behind each item whose next token is scored: characters, or tokens."""
MAX_LABELS = 64
"""Bound on the labels: for each, a step multiplies a row of the model's head in float32."""


class Document(Body):
    text: str


def _as_object(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


DocumentItem = Annotated[Document, BeforeValidator(_as_object, json_schema_input_type=str | Document)]


class PairsRequest(ReadingRequest):
    """What bodies have that ask how relevant documents are to queries."""

    unsupported = RERANK

    # How the documents relate to the query, in words, where the model takes them.
    instruction: str | None = Field(default=None, max_length=MAX_QUERY_CHARACTERS)


class RerankRequest(PairsRequest):
    """`POST /v1/rerank`."""

    id_prefix = "rerank"

    query: str = Field(min_length=1, max_length=MAX_QUERY_CHARACTERS)
    documents: Annotated[list[DocumentItem], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]
    # 0 is vLLM's own default: all of them.
    top_n: int | None = Field(default=None, ge=0, le=2**31 - 1)
    return_documents: StrictBool = True


_Texts: TypeAlias = Annotated[list[PromptItem], in_list(MAX_DOCUMENTS)]
_FIRST = ("text_1", "queries", "query")
_SECOND = ("text_2", "documents", "items")
"""The names of a pair's two sides: vLLM's, and SGLang's `query` with `items`."""


class ScoreRequest(PairsRequest):
    """`POST /v1/score`: how relevant second texts are to first ones (vLLM), or how likely tokens are behind
    prompts (SGLang)."""

    id_prefix = "score"

    text_1: _Texts | None = None
    text_2: _Texts | None = None
    queries: _Texts | None = None
    documents: _Texts | None = None
    query: (
        Annotated[str, Field(max_length=MAX_PREFIX_CHARACTERS)]
        | Annotated[list[StrictInt], Field(max_length=MAX_PREFIX_CHARACTERS, fail_fast=True)]
        | None
    ) = None
    items: _Texts | None = None
    label_token_ids: (
        Annotated[list[StrictInt], Field(min_length=1, max_length=MAX_LABELS, fail_fast=True)] | None
    ) = None
    apply_softmax: StrictBool = False
    item_first: StrictBool = False

    @property
    def sides(self) -> tuple[str, str]:
        """Return the fields of the first and the second side."""
        given = [[name for name in side if getattr(self, name) is not None] for side in (_FIRST, _SECOND)]
        if [len(names) for names in given] != [1, 1]:
            raise ValueError(f"send one of {', '.join(_FIRST)}, and one of {', '.join(_SECOND)}")
        (first,), (second,) = given
        return first, second

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Return both texts of each score. One first text stands for all."""
        first, second = (getattr(self, name) for name in self.sides)
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))

    def prompt_of(self, item: PromptItem) -> TextPrompt | TokenPrompt:
        """Return the prompt that the labels stand behind. No template writes a part of it."""
        match (item, self.query) if self.item_first else (self.query, item):
            case str(first), str(second):
                return TextPrompt(first + second)
            case list(before), list(behind):
                return TokenPrompt((*before, *behind))
        raise AssertionError("a text beside token ids")

    @model_validator(mode="after")
    def _fits(self) -> ScoreRequest:
        names = self.sides
        first, second = (getattr(self, name) for name in names)
        if (self.query is None) != (self.label_token_ids is None):
            raise ValueError("query and label_token_ids need each other; pairs have text_1 and text_2")
        kind, texts = (str, [*first, *second]) if self.query is None else (type(self.query), second)
        if any(type(text) is not kind for text in texts):
            raise ValueError(f"{' and '.join(names)} must be texts, or with query all of them token ids")
        if self.query is None and len(first) not in (1, len(second)):
            raise ValueError(f"{names[0]} has {len(first)} texts, not 1 or as many as {names[1]}")
        if self.query is None and len(first) == 1 and len(first[0]) > MAX_QUERY_CHARACTERS:
            raise ValueError(f"{names[0]} has more than {MAX_QUERY_CHARACTERS} characters")
        return self
