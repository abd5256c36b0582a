"""The answer pipeline: from token ids to a client's text."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.scheduler.answer.notations import form, message_of, pipeline

letters = st.lists(st.sampled_from([*b"ab", *"🦊é".encode()]), max_size=16)


def ended(tokens: Sequence[int], stops: Sequence[str], min_tokens: int) -> tuple[str, str | None]:
    """What is answered, and by which stop string: letter by letter, of tokens that are bytes."""
    decoder, text = getincrementaldecoder("utf-8")("replace"), ""
    pieces = [decoder.decode(bytes([token])) for token in tokens] + [decoder.decode(b"", final=True)]
    for number, piece in enumerate(pieces):
        for letter in piece:
            text += letter
            found = [stop for stop in stops if text.endswith(stop)]
            # What is left of a cut character belongs to the last token.
            if found and min(number, len(tokens) - 1) >= min_tokens:
                longest = max(found, key=len)
                return text.removesuffix(longest), longest
    return text, None


@settings(max_examples=examples(300), deadline=None)
@given(
    thoughts=st.none() | st.text("ab🦊", max_size=6),
    tokens=letters,
    stops=st.lists(st.text("ab🦊\ufffd", min_size=1, max_size=3), max_size=3),
    min_tokens=st.integers(0, 8),
)
@example(None, [*b"a\xf0\x9f"], ["a\ufffd"], 0)
@example("b", [*b"aba"], ["b"], 1)
def test_an_answer_ends_before_the_first_stop_string_that_may_end_it(
    thoughts: str | None, tokens: list[int], stops: list[str], min_tokens: int
) -> None:
    """Whatever the tokens' bounds are, also within a character that is cut off; not within `min_tokens`, and
    not in thoughts: agents that stop at `Observation:` speak to models that think about it first."""
    thinks = thoughts is not None
    before = f"{thoughts}</think>".encode() if thinks else b""
    answer = pipeline(
        form(None, "think"), in_reasoning=thinks, stop=stops, tools=(), min_tokens=min_tokens + len(before)
    )
    message, _ = message_of(answer, [bytes([byte]) for byte in [*before, *tokens]])
    assert (message.text, answer.stop_string) == ended(tokens, stops, min_tokens)
    assert (message.reasoning, answer.reasoning_tokens) == (thoughts or "", len(before))
