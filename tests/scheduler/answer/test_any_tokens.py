"""For any output in any notation: an answer or one of our errors, soon, and not longer than the output."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.answer.answer_format import AnswerFormat
from scheduler.answer.assembly import Assembly
from scheduler.answer.pipeline import AnswerPipeline
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.errors import SchedulerError
from scheduler.events import FinishReason
from scheduler.models.random_qwen3 import TINY, ensure_model, user_cache_folder
from scheduler.prompt.tokenizer import HubTokenizer
from tests.examples import examples
from tests.scheduler.answer.notations import TOOLS, WRITTEN, Message, message_of, pipeline

FORMS: dict[str, AnswerFormat] = {written.name: written.form for written in WRITTEN}
_RAW = [written.raw.encode() for written in WRITTEN]


@st.composite
def slices(draw: st.DrawFn) -> bytes:
    """A piece of some model's output, in any notation, including marks and halves of marks."""
    raw = draw(st.sampled_from(_RAW))
    start = draw(st.integers(0, len(raw)))
    return raw[start : draw(st.integers(start, len(raw)))]


said = st.lists(slices() | st.binary(max_size=30), max_size=12)


def size_of(message: Message) -> int:
    return len(message.text) + len(message.reasoning)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=examples(20), deadline=None)
@given(pieces=said, end=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]), in_reasoning=st.booleans())
def test_any_bytes_in_any_notation_are_an_answer_or_an_error_of_ours(
    name: str, pieces: list[bytes], end: FinishReason, in_reasoning: bool
) -> None:
    """Pieces of all notations and of none, cut anywhere."""
    started = time.process_time()
    with suppress(SchedulerError):
        message, _ = message_of(pipeline(FORMS[name], in_reasoning=in_reasoning), pieces, end)
        # A byte that is not text becomes one character, and a call may be returned as text, once.
        assert size_of(message) <= 2 * sum(map(len, pieces)) + 64
    # A thousand times the usual time: a bound against hangs.
    assert time.process_time() - started < 10


@pytest.fixture(scope="module")
def real() -> HubTokenizer:
    """A random model's, whose vocabulary is smaller than its model's."""
    folder = ensure_model(TINY, "tiny", user_cache_folder(os.environ))
    return HubTokenizer(folder, model_type="qwen3")


def _answer(tokenizer: HubTokenizer) -> AnswerPipeline:
    form = tokenizer.answer_format
    assembly = Assembly(form, OfferedTools(TOOLS), str, in_reasoning=False, parallel_calls=True)
    return AnswerPipeline(tokenizer.detokenizer(form.spelled(tools=True)), ("stop",), assembly)
