"""Stop strings are found for any cuts of the text, and no part of one leaks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.answer.stop_strings import StopStrings, WantedStrings, wanted_marks
from tests.examples import examples

thoroughly = settings(max_examples=examples(400), deadline=None)
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
    finder = StopStrings(WantedStrings(stops), included=included)
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
@given(text=texts, stops=stop_lists, sizes=cuts, included=st.booleans())
@example(text="xababa", stops=["aba"], sizes=[], included=False)
@example(text="the END", stops=["EN", "END"], sizes=[7], included=False)
@example(text="abd", stops=["abc", "bd"], sizes=[], included=True)
def test_the_answer_ends_at_the_same_place_whatever_the_pieces(
    text: str, stops: list[str], sizes: list[int], included: bool
) -> None:
    """The same text and the same match as one character at a time; no character of a stop string leaks, not
    even of one that is completed only later. One that is included is the last text."""
    answer, expected = oracle(text, stops)
    whole = answer + (expected or "") if included else answer
    out, matched = read(text, stops, sizes, included=included)
    assert ("".join(out), matched) == (whole, expected)
    for pieces in range(len(out)):
        assert answer.startswith("".join(out[:pieces]))


@thoroughly
@given(text=texts, stops=stop_lists)
def test_no_more_is_held_back_than_could_become_a_stop_string(text: str, stops: list[str]) -> None:
    """The output lags by at most the longest suffix with which some stop string begins."""
    finder = StopStrings(WantedStrings(stops))
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


@thoroughly
@given(text=texts, stops=stop_lists, sizes=cuts, safe=st.integers(0, 12))
def test_none_is_complete_before_it_may_be(text: str, stops: list[str], sizes: list[int], safe: int) -> None:
    """No stop string ends in the first `safe` characters; one that begins there may end behind them."""
    expected: tuple[str, str | None] = (text, None)
    for end in range(safe + 1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            longest = max(found, key=len)
            expected = text[: end - len(longest)], longest
            break
    finder = StopStrings(WantedStrings(stops))
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


def beginning(text: str, wanted: Sequence[str]) -> int:
    """One after the other, from the longest: as it was once done for each token."""
    longest = 0
    for string in wanted:
        for length in range(min(len(string) - 1, len(text)), longest, -1):
            if text.endswith(string[:length]):
                longest = length
                break
    return longest


@thoroughly
@given(text=texts, marks=stop_lists)
def test_what_may_begin_a_mark_is_the_longest_end_of_the_text_with_which_one_begins(
    text: str, marks: list[str]
) -> None:
    """Not all of one: that is a mark."""
    assert wanted_marks(tuple(marks)).beginning(text) == beginning(text, marks)


def test_many_long_stop_strings_cost_a_token_as_much_as_one() -> None:
    """64 strings of 256 characters that begin alike, in a text that follows them: they once cost 5 ms a token
    and row. The text's way through one is as long."""
    several = [("ab" * 128)[: 250 - one] + f"c{one:05}" for one in range(64)]
    text = ("ab" * 120 + "d") * 40

    def seconds(stops: Sequence[str]) -> float:
        finder = StopStrings(WantedStrings(stops))
        begun = time.thread_time()
        for start in range(0, len(text), 4):
            finder.feed(text[start : start + 4])
        return time.thread_time() - begun

    least_of_one = min(seconds(several[:1]) for _ in range(5))
    assert min(seconds(several) for _ in range(5)) < 5 * least_of_one


SILENT = {7: "<a>", 8: "b<", 9: "<e"}
tokens = st.lists(st.sampled_from([*SILENT, *"ab<e>"]), max_size=30)
naming_lists = st.lists(st.text("ab<e>", min_size=1, max_size=7), min_size=1, max_size=4)


def read_tokens(
    answer: Sequence[int | str], stops: Sequence[str], *, included: bool
) -> tuple[str, str | None]:
    """`answer`: special tokens by their ids, and characters of text."""
    wanted = WantedStrings(stops, SILENT)
    finder, out = StopStrings(wanted, included=included), ""
    for one in answer:
        out += finder.feed(one if isinstance(one, str) else wanted.marks[one])
        if finder.matched is not None:
            return out, finder.matched
    return out + finder.finish(), None


@thoroughly
@given(answer=tokens, stops=naming_lists, included=st.booleans())
def test_a_stop_string_ends_the_answer_at_the_special_token_that_it_names(
    answer: list[int | str], stops: list[str], included: bool
) -> None:
    """Alone or with text beside it. The token's own text is nowhere but in the stop string."""
    marked = {token: chr(0xE000 + token) for token in SILENT}

    def with_tokens(stop: str) -> str:
        for token in sorted(SILENT, key=lambda one: len(SILENT[one]), reverse=True):
            stop = stop.replace(SILENT[token], marked[token])
        return stop

    text = "".join(one if isinstance(one, str) else marked[one] for one in answer)
    by_form = {form: stop for stop in stops for form in (stop, with_tokens(stop))}
    before, matched = oracle(text, list(by_form))
    for mark in marked.values():
        before = before.replace(mark, "")
    named = None if matched is None else by_form[matched]
    expected = before + (named or "") if included else before
    assert read_tokens(answer, stops, included=included) == (expected, named)
