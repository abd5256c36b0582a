"""Each token's log-probability comes with the text that it is part of, once."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.answer.assembly import Assembly
from scheduler.answer.pipeline import AnswerPipeline
from scheduler.answer.token_spans import TokenSpans
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.events import TextDelta, TokenLogprobs
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
@example(list(b"abcd!"), ["d!"], 0)
@example([WORD, *b"xyz"], ["0 x"], 0)
@example([WORD, 0xF0, 0x9F], [], 0)
@example([WORD, EOS, *"né🦊".encode(), EOS], [], 0)
def test_tokens_come_in_order_and_change_no_text(ids: list[int], stops: list[str], min_tokens: int) -> None:
    """Nothing twice, and each token at its offset: parts of a character at the character's. A stop string
    takes those along that are wholly its own; one with a letter of the answer is kept."""
    pipeline = plain(*stops, min_tokens=min_tokens)
    text, entries = read(pipeline, ids)
    found = places(entries)
    assert found == list(range(len(found)))
    assert [entry.ids[0] for entry in entries] == ids[: len(found)]
    token_bytes = ByteTokenizer().token_bytes
    assert [entry.spelling(entry.ids[0]) for entry in entries] == [*map(token_bytes, ids[: len(found)])]
    decoder = getincrementaldecoder("utf-8")("replace")
    offset = 0
    for entry in entries:
        assert entry.offset == offset
        offset += 0 if entry.ids[0] == EOS else len(decoder.decode(entry.spelling(entry.ids[0])))
    if pipeline.stop_string is None:
        assert len(found) == len(ids)
    elif entries:
        assert entries[-1].offset < len(text)
    without = AnswerPipeline(ByteTokenizer().detokenizer(), stops, min_tokens=min_tokens)
    pieces = [piece for piece in pieces_of(without, ids) if isinstance(piece, TextDelta)]
    assert "".join([piece.text for piece in pieces]) == text, (
        "asking for log-probabilities changed the answer"
    )


@pytest.mark.parametrize("written", WRITTEN, ids=[written.name for written in WRITTEN])
def test_only_the_text_s_tokens_are_there(written: Written) -> None:
    """In every notation: not those of reasoning, calls, marks, and the white space next to them."""
    ids = written.raw.encode()
    text, entries = read(in_notation(written), ids)
    assert text == written.text
    # A byte a token: the tokens spell the text.
    assert b"".join([entry.spelling(entry.ids[0]) for entry in entries]).decode() == written.text
    assert [entry.ids[0] for entry in entries] == [ids[place] for place in places(entries)]
