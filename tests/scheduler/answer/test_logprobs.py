"""Each token's log-probability comes with the text that it is part of, once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.answer.assembly import Assembly
from scheduler.answer.pipeline import AnswerPipeline
from scheduler.answer.token_spans import TokenSpans
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.events import FinishReason, TextDelta, TokenLogprobs
from scheduler.shared.messages import LogprobsOut
from tests.examples import examples
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer
from tests.scheduler.answer.notations import TOOLS, WRITTEN, Written, pieces_of

WORD = 300
"""`w300 `, one token."""


def told(token_ids: Sequence[int]) -> list[LogprobsOut]:
    """Different for each place, so that a lost, doubled or moved token is detected."""
    return [LogprobsOut(-float(place), ((token, -0.5),)) for place, token in enumerate(token_ids)]


def read(pipeline: AnswerPipeline, token_ids: Sequence[int]) -> tuple[str, list[TokenLogprobs]]:
    """The text and its tokens."""
    pieces = pieces_of(pipeline, token_ids, told(token_ids))
    texts = [piece for piece in pieces if isinstance(piece, TextDelta)]
    return "".join([piece.text for piece in texts]), [entry for piece in texts for entry in piece.logprobs]


def plain(*stop: str, min_tokens: int = 0) -> AnswerPipeline:
    tokenizer = ByteTokenizer()
    spans = TokenSpans(tokenizer.token_bytes)
    return AnswerPipeline(tokenizer.detokenizer(), stop, min_tokens=min_tokens, spans=spans)


def in_notation(written: Written, *stop: str) -> AnswerPipeline:
    tokenizer = ByteTokenizer()
    spans = TokenSpans(tokenizer.token_bytes)
    assembly = Assembly(
        written.form,
        OfferedTools(TOOLS),
        lambda index: f"call_{index}",
        in_reasoning=written.in_reasoning,
        parallel_calls=True,
        spans=spans,
    )
    return AnswerPipeline(tokenizer.detokenizer(), stop, assembly, spans=spans)


def places(entries: Iterable[TokenLogprobs]) -> list[int]:
    """Which tokens they are."""
    return [round(-entry.values[0]) for entry in entries]


def test_every_token_of_a_plain_answer_is_there() -> None:
    """Words, and characters of several tokens: parts of one have no text and their own bytes."""
    ids = [WORD, *"né🦊".encode(), WORD + 1]
    text, entries = read(plain(), ids)
    assert text == "w300 né🦊w301 "
    assert places(entries) == list(range(len(ids)))
    assert b"".join([entry.spelling(entry.ids[0]) for entry in entries]) == text.encode()
    assert [entry.ids[0] for entry in entries] == ids
    assert [entry.offset for entry in entries] == [0, 5, 6, 6, 7, 7, 7, 7, 8]
    assert [entry.spelling(entry.ids[0]) for entry in entries[2:4]] == [b"\xc3", b"\xa9"]
    assert [*map(entries[0].spelling, entries[0].ids[1:])] == [b"w300 "]


def test_a_character_that_is_never_whole_keeps_its_tokens() -> None:
    """They go with the replacement character at the end."""
    text, entries = read(plain(), [WORD, 0xF0, 0x9F])
    assert text == "w300 �"
    assert places(entries) == [0, 1, 2]


def test_tokens_without_text_are_not_lost() -> None:
    """An end of sequence that the request ignores: in the middle it goes with the text after it."""
    text, entries = read(plain(), [WORD, EOS, WORD, EOS])
    assert text == "w300 w300 "
    assert places(entries) == [0, 1, 2, 3]
    assert entries[1].spelling(entries[1].ids[0]) == b"<eos>"


def test_a_stop_string_takes_its_tokens_with_it() -> None:
    """Tokens that are wholly its own; one with a letter of the answer is kept."""
    text, entries = read(plain("d!"), b"abcd!")
    assert (text, places(entries)) == ("abc", [0, 1, 2])
    text, entries = read(plain("0 x"), [WORD, *b"xyz"])
    assert (text, places(entries)) == ("w30", [0])


def test_held_text_brings_its_tokens_when_it_is_let_go() -> None:
    """Text that could have been a stop string and was not comes late and whole."""
    pipeline = plain("stop")
    ids = b"a sto"
    *pieces, late = pieces_of(pipeline, ids, told(ids), FinishReason.LENGTH)
    assert "".join([piece.text for piece in pieces if isinstance(piece, TextDelta)]) == "a "
    assert isinstance(late, TextDelta)
    assert (late.text, places(late.logprobs)) == ("sto", [2, 3, 4])


def test_a_token_without_its_log_probability_is_an_error() -> None:
    """An engine that omits one must not shift all others."""
    with pytest.raises(AssertionError, match="without its log-probability"):
        list(plain().read(WORD))


_tokens = st.lists(
    st.sampled_from([WORD, EOS, *b"ab\n ", *"é🦊".encode()]) | st.integers(0, 255), max_size=30
)
_stops = st.lists(st.text("ab w3", min_size=1, max_size=3), max_size=3)


@settings(max_examples=examples(300), deadline=None)
@given(ids=_tokens, stops=_stops, min_tokens=st.integers(0, 12))
def test_tokens_come_in_order_and_change_no_text(ids: list[int], stops: list[str], min_tokens: int) -> None:
    """Nothing twice, and each token at its offset."""
    text, entries = read(plain(*stops, min_tokens=min_tokens), ids)
    found = places(entries)
    assert found == list(range(len(found)))
    assert [entry.offset for entry in entries] == sorted(entry.offset for entry in entries)
    without = AnswerPipeline(ByteTokenizer().detokenizer(), stops, min_tokens=min_tokens)
    pieces = [piece for piece in pieces_of(without, ids) if isinstance(piece, TextDelta)]
    assert "".join([piece.text for piece in pieces]) == text, (
        "asking for log-probabilities changed the answer"
    )
    if not stops:
        assert len(found) == len(ids)


@pytest.mark.parametrize("written", WRITTEN, ids=[written.name for written in WRITTEN])
def test_only_the_text_s_tokens_are_there(written: Written) -> None:
    """In every notation: not those of reasoning, calls, marks, and the white space next to them."""
    ids = written.raw.encode()
    text, entries = read(in_notation(written), ids)
    assert text == written.text
    # A byte a token: the tokens spell the text.
    assert b"".join([entry.spelling(entry.ids[0]) for entry in entries]).decode() == written.text
    assert [entry.ids[0] for entry in entries] == [ids[place] for place in places(entries)]
