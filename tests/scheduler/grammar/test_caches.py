"""Written and checked grammars are cached, within bounds."""

from __future__ import annotations

import pytest

from scheduler.grammar.caches import GrammarTexts, Verdicts, content_key
from scheduler.grammar.vocabulary import GrammarVocabulary
from scheduler.prompt.preparation import Preparation
from scheduler.request import ChatPrompt, GenerationRequest
from scheduler.structure import OneOf
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.scheduling import FOLDER


def asked_for(**bounds: int) -> tuple[Verdicts, list[str]]:
    asked: list[str] = []

    def complaint(grammar: str) -> str | None:
        asked.append(grammar)
        return "bad" if grammar.startswith("!") else None

    return Verdicts(complaint, **bounds), asked


def test_the_library_is_asked_once() -> None:
    """The verdicts on good grammars are kept, and those on bad ones."""
    verdicts, asked = asked_for()
    assert [verdicts.of(text) for text in ("a", "!b", "a", "!b")] == [None, "bad", None, "bad"]
    assert asked == ["a", "!b"]


def test_the_least_recently_asked_goes_first() -> None:
    """Beyond the number of entries."""
    verdicts, asked = asked_for(max_entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        verdicts.of(text)
    assert asked == ["a", "b", "c", "b"]
    assert len(verdicts) == 2


def test_bytes_are_bounded_too() -> None:
    """One that alone is larger than all that may be kept is answered and not kept."""
    verdicts, asked = asked_for(max_bytes=10)
    for text in ("a" * 6, "b" * 4, "c" * 4, "d" * 11, "c" * 4):
        assert verdicts.of(text) is None
        assert verdicts.held_bytes <= 10
    assert [text[0] for text in asked] == ["a", "b", "c", "d", "c"]


def test_a_schema_that_comes_again_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two equal requests costs no work of the library's."""
    compiled: list[str] = []
    complaint = GrammarVocabulary.complaint

    def counted(vocabulary: GrammarVocabulary, grammar: str) -> str | None:
        compiled.append(grammar)
        return complaint(vocabulary, grammar)

    monkeypatch.setattr(GrammarVocabulary, "complaint", counted)
    preparation = Preparation(ByteTokenizer(), FOLDER)
    request = GenerationRequest(
        "test", ChatPrompt(({"role": "user", "content": "x"},)), structure=OneOf(("a",), "x")
    )
    first = preparation.prepare(request).submit.grammar
    assert compiled
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
