"""Stop strings are found for any cuts of the text, and no part of one leaks."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.answer.stop_strings import StopStrings, WantedStrings
from tests.examples import examples

thoroughly = settings(max_examples=examples(300), deadline=None)
letters = "ab<e>🦊"
"""Few, so that random texts hold random stop strings."""
SILENT = {7: "<a>", 8: "b<", 9: "<e"}
"""Special tokens, which give no text."""
MARKED = {token: chr(0xE000 + token) for token in SILENT}
pieces = st.lists(st.sampled_from([*SILENT]) | st.text(letters, min_size=1, max_size=5), max_size=12)
stop_lists = st.lists(st.text(letters, min_size=1, max_size=5), max_size=4)


def oracle(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Character by character: the answer is over when it ends with a stop string, the longest if several."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def with_tokens(stop: str) -> str:
    """With a letter of its own for each special token, of which the longest is named."""
    for token in sorted(SILENT, key=lambda one: len(SILENT[one]), reverse=True):
        stop = stop.replace(SILENT[token], MARKED[token])
    return stop


@thoroughly
@given(answer=pieces, stops=stop_lists, included=st.booleans())
@example(answer=["xababa"], stops=["aba"], included=False)
@example(answer=["the END"], stops=["EN", "END"], included=False)
@example(answer=["abd"], stops=["abc", "bd", "d"], included=True)
def test_the_answer_ends_at_the_same_place_whatever_the_pieces(
    answer: list[int | str], stops: list[str], included: bool
) -> None:
    """The same text and the same match as one character at a time; no character of a stop string leaks, not
    even of one that is completed only later. One that is included is the last text. A special token's own
    text is nowhere else: named alone or with text beside it, it ends the answer."""
    by_form = {form: stop for stop in stops for form in (stop, with_tokens(stop))}
    named = {token: text for token, text in SILENT.items() if any(text in stop for stop in stops)}
    marked = {token: MARKED[token] for token in named}
    text = "".join(one if isinstance(one, str) else marked.get(one, "") for one in answer)
    before, matched = oracle(text, list(by_form))
    before = before.translate(dict.fromkeys(map(ord, MARKED.values())))
    expected = None if matched is None else by_form[matched]
    wanted = WantedStrings(stops, named)
    finder, out = StopStrings(wanted, included=included), ""
    for one in answer:
        assert before.startswith(out)
        out += finder.feed(one if isinstance(one, str) else wanted.marks.get(one, ""))
        if finder.matched is not None:
            break
    else:
        out += finder.finish()
    assert (out, finder.matched) == (before + (expected or "") if included else before, expected)


@thoroughly
@given(text=st.text(letters, max_size=40), stops=stop_lists)
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
