"""The cache of written grammars is bounded, and tells apart what is written differently."""

from __future__ import annotations

from scheduler.grammar.grammar_texts import GrammarTexts, content_key


def test_the_least_recently_used_goes_first() -> None:
    """By number and by bytes; an entry that is put again counts once."""
    texts = GrammarTexts(max_entries=2, max_bytes=100)
    for key in (b"a", b"b"):
        texts.put(key, "x" * 10)
    assert texts.get(b"a") is not None
    texts.put(b"c", "x" * 10)
    assert (texts.get(b"a"), texts.get(b"b"), texts.held_bytes) == ("x" * 10, None, 20)
    texts.put(b"a", "y" * 95)
    assert (texts.get(b"c"), texts.get(b"a"), texts.held_bytes) == (None, "y" * 95, 95)


def test_the_order_of_members_counts() -> None:
    """It is the order in which parameters are written."""
    assert content_key({"a": 1, "b": 2}) != content_key({"b": 2, "a": 1})
    assert content_key({"a": 1, "b": 2}) == content_key({"a": 1, "b": 2})
