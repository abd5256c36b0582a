"""`penstock bench beside-embeddings`: its texts, its figures and its verdict."""

from __future__ import annotations

from dataclasses import replace

from loadtests.beside import Beside, BesidePlan, lines, texts_of

FOUND = Beside(
    alone={"p50": 0.010, "p95": 0.020, "p99": 0.030},
    beside={"p50": 0.011, "p95": 0.025, "p99": 0.090},
    gaps=(100, 300),
    texts_per_second=12.0,
    texts_per_second_alone=30.0,
    tokens=4000,
)


def test_texts_are_the_same_ones_each_time_and_all_different() -> None:
    """Or a cache would answer, and two runs would not compare."""
    plan = BesidePlan(texts=50, most_words=5)
    texts = texts_of(plan)
    assert texts == texts_of(plan)
    assert len(set(texts)) == 50
    assert {len(text.split()) for text in texts} == {3, 4, 5, 6}


def test_the_verdict_is_of_the_95th_percentile() -> None:
    """The 50th and 99th are shown beside it."""
    assert FOUND.ratio == 1.25
    assert replace(FOUND, beside=FOUND.beside | {"p95": 0.05}).ratio == 2.5
    said = list(lines(FOUND))
    assert said[0] == "chats alone   ITL p50 10.0 ms, p95 20.0 ms, p99 30.0 ms, of 100 gaps"
    assert said[2] == "p95 beside is 1.25 times alone (at most 1.5)"
    assert said[3] == "texts/s 12 beside the chats, 30 without them; 4000 tokens"
