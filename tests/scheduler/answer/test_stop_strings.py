"""Stop strings are found for any cuts of the text, and no part of one leaks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.answer.stop_strings import StopStrings

thoroughly = settings(max_examples=400, deadline=None)
letters = "ab🦊e\u0301"
"""Few, so that random texts hold random stop strings; the last two make one visible character."""
texts = st.text(letters, max_size=40)
stop_lists = st.lists(st.text(letters, min_size=1, max_size=5), max_size=4)
cuts = st.lists(st.integers(0, 7), max_size=20)


def oracle(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Character by character: the answer is over when it ends with a stop string, the longest if several."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def read(
    text: str, stops: Sequence[str], sizes: Sequence[int], *, included: bool = False
) -> tuple[list[str], str | None]:
    """What comes out at each piece, and what was matched."""
    finder = StopStrings(stops, included=included)
    out: list[str] = []
    start = 0
    for size in [*sizes, *([1] * len(text))]:
        if start >= len(text) or finder.matched is not None:
            break
        out.append(finder.feed(text[start : start + size]))
        start += size
    if finder.matched is None:
        out.append(finder.finish())
    return out, finder.matched


@thoroughly
@given(text=texts, stops=stop_lists, sizes=cuts)
def test_the_answer_ends_at_the_same_place_whatever_the_pieces(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    """The same text and the same match as one character at a time."""
    out, matched = read(text, stops, sizes)
    assert ("".join(out), matched) == oracle(text, stops)


@thoroughly
@given(text=texts, stops=stop_lists, sizes=cuts)
def test_an_included_stop_string_is_the_answers_last_text(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    """And nothing else changes."""
    out, matched = read(text, stops, sizes, included=True)
    answer, expected = oracle(text, stops)
    assert ("".join(out), matched) == (answer + (expected or ""), expected)


@thoroughly
@given(text=texts, stops=stop_lists, sizes=cuts)
def test_at_every_moment_only_text_of_the_answer_is_out(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    """No character of a stop string leaks, not even of one that is completed only later."""
    answer, _ = oracle(text, stops)
    out, _ = read(text, stops, sizes)
    for pieces in range(len(out) + 1):
        assert answer.startswith("".join(out[:pieces]))


@thoroughly
@given(text=texts, stops=stop_lists)
def test_no_more_is_held_back_than_could_become_a_stop_string(text: str, stops: list[str]) -> None:
    """The output lags by at most the longest suffix with which some stop string begins."""
    finder = StopStrings(stops)
    out = ""
    for end, character in enumerate(text, 1):
        out += finder.feed(character)
        if finder.matched is not None:
            return
        held = text[len(out) : end]
        longest = max(
            (n for stop in stops for n in range(len(stop)) if text[:end].endswith(stop[:n])), default=0
        )
        assert held == text[end - longest : end]


@pytest.mark.parametrize(
    ("stops", "text", "answer", "matched"),
    [
        (["aba"], "xababa", "x", "aba"),
        (["aab"], "aaaab", "aa", "aab"),
        (["END", "EN"], "the END", "the ", "EN"),
        (["EN", "END"], "the END", "the ", "EN"),
        (["b", "aab"], "xaab", "x", "aab"),
        (["abc", "bd"], "abd", "a", "bd"),
        (["🦊"], "a 🦊", "a ", "🦊"),
        (["\n\n"], "one\n\ntwo", "one", "\n\n"),
        (["</s>"], "a < b", "a < b", None),
        ([], "anything", "anything", None),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_worked_examples(stops: list[str], text: str, answer: str, matched: str | None, size: int) -> None:
    """Overlaps, stop strings that begin or end with one another, characters outside ASCII."""
    out, found = read(text, stops, [size] * 100)
    assert ("".join(out), found) == (answer, matched)


def test_a_partial_match_waits_for_its_end() -> None:
    """`EN` is held back until it is known not to be `END`."""
    finder = StopStrings(["END"])
    assert finder.feed("the EN") == "the "
    assert finder.feed("GINE") == "ENGIN"
    assert finder.finish() == "E"


@thoroughly
@given(text=texts, stops=stop_lists, sizes=cuts, safe=st.integers(0, 12))
def test_none_is_complete_before_it_may_be(text: str, stops: list[str], sizes: list[int], safe: int) -> None:
    """Of the first `safe` characters none ends one; one that begins there may end behind them."""
    expected: tuple[str, str | None] = (text, None)
    for end in range(safe + 1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            longest = max(found, key=len)
            expected = text[: end - len(longest)], longest
            break
    finder = StopStrings(stops)
    out, start = "", 0
    for size in [*sizes, *([1] * len(text))]:
        if finder.matched is None:
            end = min(start + size, len(text))
            out += finder.feed(text[start : min(end, safe)], may_end=False)
            out += finder.feed(text[max(start, safe) : end])
            start = end
    if finder.matched is None:
        out += finder.finish()
    assert (out, finder.matched) == expected
