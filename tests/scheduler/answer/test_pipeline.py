"""From token ids to text that a client may see."""

from __future__ import annotations

from scheduler.answer.pipeline import AnswerPipeline
from tests.fakes.byte_tokenizer import ByteTokenizer


def pipeline(*stop: str) -> AnswerPipeline:
    return AnswerPipeline(ByteTokenizer().detokenizer(), stop)


def test_text_passes_and_the_rest_comes_at_the_end() -> None:
    """A held-back beginning of a stop string is text after all when the answer ends there."""
    answer = pipeline("END")
    assert answer.feed(b"the E") == "the "
    assert not answer.stopped
    assert answer.finish() == "E"
    assert not answer.stopped


def test_a_stop_string_across_tokens_ends_the_answer_before_it() -> None:
    """The tokens' borders are not the text's."""
    answer = pipeline("END")
    assert answer.feed(b"the E") + answer.feed(b"ND of it") == "the "
    assert answer.stopped


def test_a_stop_string_may_be_complete_only_in_the_flush() -> None:
    """Bytes cut inside a character become U+FFFD at the end; that may be what the stop string waits for."""
    answer = pipeline("x\ufffd")
    assert answer.feed(b"text: x\xf0\x9f") == "text: "
    assert not answer.stopped
    assert answer.finish() == ""
    assert answer.stopped


def test_a_flush_that_completes_no_stop_string_is_text() -> None:
    """Both what the detokenizer and what the stop strings held back come out, in order."""
    answer = pipeline("x\ufffdy")
    assert answer.feed(b"text: x\xf0\x9f") == "text: "
    assert answer.finish() == "x\ufffd"
    assert not answer.stopped
