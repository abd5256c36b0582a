"""The accepted body of a ranking, in Jina's, Cohere's and vLLM's form. Unsupported fields are refused by
name.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictBool

from api.access.identity import MAX_TIMEOUT_SECONDS
from api.bodies.body import Body
from api.bodies.fields import WithoutEffect
from api.bodies.unsupported import RERANK
from scheduler.request import PRIORITIES

MAX_DOCUMENTS = 2048
MAX_QUERY_CHARACTERS = 1 << 15
"""Bound on the query, of which each document's prompt has a copy while it waits and runs."""


class Document(Body):
    text: str


def _as_object(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


DocumentItem = Annotated[Document, BeforeValidator(_as_object, json_schema_input_type=str | Document)]


class RerankRequest(Body):
    """`POST /v1/rerank`."""

    unsupported = RERANK

    model: str | None = None
    query: str = Field(min_length=1, max_length=MAX_QUERY_CHARACTERS)
    documents: Annotated[list[DocumentItem], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]
    top_n: int | None = Field(default=None, ge=1, le=2**31 - 1)
    return_documents: StrictBool = True
    # How the documents relate to the query, in words, where the model takes them.
    instruction: str | None = Field(default=None, max_length=MAX_QUERY_CHARACTERS)
    user: Annotated[str | None, WithoutEffect("used only for the provider's own accounting")] = None

    priority: int = Field(default=0, ge=PRIORITIES.start, le=PRIORITIES.stop - 1)
    timeout: float | None = Field(default=None, gt=0, le=MAX_TIMEOUT_SECONDS)
