"""The answer pipeline: from token ids to a client's text."""

from __future__ import annotations

from scheduler.answer.pipeline import AnswerPipeline
from scheduler.events import FinishReason, TextDelta
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.scheduler.answer.notations import form, message_of
from tests.scheduler.answer.notations import pipeline as with_sections


def pipeline(*stop: str) -> AnswerPipeline:
    return AnswerPipeline(ByteTokenizer().detokenizer(), stop)


def feed(answer: AnswerPipeline, data: bytes) -> str:
    tokens = (byte for byte in data if not answer.stopped)
    pieces = [piece for token in tokens for piece in answer.read(token)]
    return "".join([piece.text for piece in pieces if isinstance(piece, TextDelta)])


def finish(answer: AnswerPipeline) -> str:
    pieces = answer.end(FinishReason.LENGTH)
    return "".join([piece.text for piece in pieces if isinstance(piece, TextDelta)])


def test_text_passes_and_the_rest_comes_at_the_end() -> None:
    """A held-back beginning of a stop string is text after all when the answer ends there."""
    answer = pipeline("END")
    assert feed(answer, b"the E") == "the "
    assert not answer.stopped
    assert finish(answer) == "E"
    assert not answer.stopped


def test_a_stop_string_across_tokens_ends_the_answer_before_it() -> None:
    """Token boundaries are not text boundaries."""
    answer = pipeline("END")
    assert feed(answer, b"the E") + feed(answer, b"ND of it") == "the "
    assert answer.stopped


def test_a_stop_string_may_be_complete_only_in_the_flush() -> None:
    """Bytes cut inside a character become U+FFFD at the end; that may be what the stop string waits for."""
    answer = pipeline("x\ufffd")
    assert feed(answer, b"text: x\xf0\x9f") == "text: "
    assert not answer.stopped
    assert finish(answer) == ""
    assert answer.stopped


def test_a_flush_that_completes_no_stop_string_is_text() -> None:
    """The text that the detokenizer and the stop strings held back comes out, in order."""
    answer = pipeline("x\ufffdy")
    assert feed(answer, b"text: x\xf0\x9f") == "text: "
    assert finish(answer) == "x\ufffd"
    assert not answer.stopped


def test_a_stop_string_within_min_tokens_ends_nothing() -> None:
    """It is text; one that is complete with a later token ends the answer, wherever it began."""
    tokenizer = ByteTokenizer()
    for chunks in ([b"aEND bEND c"], [b"aEND b", b"END c"], [bytes([byte]) for byte in b"aEND bEND c"]):
        answer = AnswerPipeline(tokenizer.detokenizer(), ("END",), min_tokens=4)
        assert "".join([feed(answer, chunk) for chunk in chunks if not answer.stopped]) == "aEND b"
        assert answer.stop_string == "END"
    for min_tokens, stopped in ((3, True), (4, False)):
        answer = AnswerPipeline(tokenizer.detokenizer(), ("END",), min_tokens=min_tokens)
        assert feed(answer, b"aEND") + finish(answer) == ("a" if stopped else "aEND")
        assert answer.stopped == stopped


def test_a_stop_string_ends_no_thoughts() -> None:
    """Agents that stop at `Observation:` speak to models that think about it first."""
    text = b"<think>I wait for Observation: it comes.</think>It rains. Observation: 4 degrees"
    answer = with_sections(form(None, "think"), stop=["Observation:"])
    message, reason = message_of(answer, [bytes([byte]) for byte in text])
    assert (message.reasoning, message.text) == ("I wait for Observation: it comes.", "It rains. ")
    assert (answer.stop_string, reason) == ("Observation:", FinishReason.STOP)
