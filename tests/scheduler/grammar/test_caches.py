"""Written and checked grammars are cached, within bounds."""

from __future__ import annotations

import pytest

from scheduler.grammar.caches import GrammarTexts, content_key
from scheduler.grammar.vocabulary import GrammarVocabulary
from scheduler.prompt.preparation import Preparation
from scheduler.request import ChatPrompt, GenerationRequest
from scheduler.structure import JsonText
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.scheduling import FOLDER


def test_a_schema_that_comes_again_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a part of it while its faults are looked for."""
    compiled: list[str] = []
    complaint = GrammarVocabulary.complaint

    def counted(vocabulary: GrammarVocabulary, grammar: str) -> str | None:
        compiled.append(grammar)
        return complaint(vocabulary, grammar)

    monkeypatch.setattr(GrammarVocabulary, "complaint", counted)
    preparation = Preparation(ByteTokenizer(), FOLDER)
    bad = {"type": "string", "pattern": "a(?!b)"}
    schema = {"type": "object", "properties": {"a": bad, "b": {**bad, "maxLength": 9}}}
    request = GenerationRequest(
        "test", ChatPrompt(({"role": "user", "content": "x"},)), structure=JsonText(schema, "x", exact=False)
    )
    first = preparation.prepare(request).submit.grammar
    assert len(compiled) == len(set(compiled)) > 0
    compiled.clear()
    assert preparation.prepare(request).submit.grammar == first
    assert not compiled


def test_the_written_grammar_used_least_recently_goes_first() -> None:
    """By number and by bytes; an entry that is put again counts once."""
    texts = GrammarTexts[str](max_entries=2, max_bytes=100)
    for key in (b"a", b"b"):
        texts.put(key, "x" * 10)
    assert texts.get(b"a") is not None
    texts.put(b"c", "x" * 10)
    assert (texts.get(b"a"), texts.get(b"b"), texts.held_bytes) == ("x" * 10, None, 20)
    texts.put(b"a", "y" * 95)
    assert (texts.get(b"c"), texts.get(b"a"), texts.held_bytes) == (None, "y" * 95, 95)


def test_the_order_of_members_tells_written_grammars_apart() -> None:
    """It is the order in which parameters are written."""
    assert content_key({"a": 1, "b": 2}) != content_key({"b": 2, "a": 1})
    assert content_key({"a": 1, "b": 2}) == content_key({"a": 1, "b": 2})
