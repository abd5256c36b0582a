"""One request's events between the multiplexer and its reader: merged, in order, with one end."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import trio_test

from scheduler.events import (
    Finished,
    FinishReason,
    Prefilling,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStarted,
    Usage,
)
from scheduler.requests.mailbox import Doorbell, Mailbox
from scheduler.requests.stream import RequestStream
from tests.examples import examples
from tests.scheduler.requests.records import make_record

END = Finished(FinishReason.LENGTH, Usage(3, 0, 5))
TAKE = object()

actions = st.lists(st.text("ab", max_size=3) | st.just(TAKE), max_size=40)
prefills = st.lists(st.just(TAKE) | st.integers(1, 3), max_size=6)


def play(mailbox: Mailbox, actions: list[object]) -> list[StreamEvent]:
    """Puts and takes as given, the final event, then takes to the end."""
    taken: list[StreamEvent | None] = []
    for action in actions:
        if isinstance(action, str):
            mailbox.put(TextDelta(action))
        elif isinstance(action, int):
            mailbox.put_progress(Prefilling(action, 3))
        else:
            taken.append(mailbox.take_nowait())
    mailbox.put_final(END)
    taken += [mailbox.take_nowait() for _ in range(5)]
    return [event for event in taken if event is not None]


@settings(max_examples=examples(200), deadline=None)
@given(prefills=prefills, actions=actions)
def test_any_interleaving_gives_the_whole_text_in_order_and_one_end(
    prefills: list[object], actions: list[object]
) -> None:
    """However late and however seldom the reader comes: progress, then text, then one final event."""
    events = play(Mailbox(), prefills + actions)
    text = "".join([event.text for event in events if isinstance(event, TextDelta)])
    assert text == "".join([action for action in actions if isinstance(action, str)])
    assert events.count(END) == 1
    assert events[-1] == END
    kinds = [type(event) for event in events]
    assert kinds == sorted(kinds, key=[Prefilling, TextDelta, Finished].index)
    assert all(event.text for event in events if isinstance(event, TextDelta))


@settings(max_examples=examples(100), deadline=None)
@given(prefills=prefills, actions=actions)
def test_a_reader_that_comes_last_finds_at_most_one_event_of_each_kind(
    prefills: list[object], actions: list[object]
) -> None:
    """The mailbox merges, so that what waits is bounded by the text itself. Of progress only the newest is
    news, and none once there is text."""
    done = [action for action in prefills if isinstance(action, int)]
    texts = [action for action in actions if isinstance(action, str)]
    progress = [Prefilling(done[-1], 3)] if done and not any(texts) else []
    text = [TextDelta("".join(texts))] if any(texts) else []
    assert play(Mailbox(), [*done, *texts]) == [*progress, *text, END]


@trio_test
async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    """A keep-alive is a wait with a deadline: the next event is still delivered."""
    doorbell, record = Doorbell(), make_record()
    mailbox = record.mailbox = Mailbox(doorbell)
    stream = RequestStream([record], doorbell)
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.receive_choice()
    mailbox.put(TextDelta("a"))
    mailbox.put_final(END)
    assert [await stream.receive_choice() for _ in range(2)] == [(0, TextDelta("a")), (0, END)]


pieces = st.one_of(
    st.text("ab", min_size=1, max_size=2).map(TextDelta),
    st.text("ab", min_size=1, max_size=2).map(ReasoningDelta),
    st.integers(0, 2).map(lambda index: ToolCallStarted(index, f"id{index}", "f")),
    st.tuples(st.integers(0, 2), st.text("ab", min_size=1, max_size=2)).map(
        lambda pair: ToolCallArguments(*pair)
    ),
)


@settings(max_examples=examples(200), deadline=None)
@given(actions=st.lists(pieces | st.just(TAKE), max_size=30))
def test_pieces_of_one_kind_merge_and_kinds_keep_their_order(actions: list[object]) -> None:
    """However seldom the reader reads, cut into single letters it equals what was put."""
    mailbox, taken, put = Mailbox(), [], []
    for action in actions:
        if action is TAKE:
            taken.append(mailbox.take_nowait())
        else:
            assert isinstance(action, TextDelta | ReasoningDelta | ToolCallStarted | ToolCallArguments)
            put.append(action)
            mailbox.put(action)
    while (event := mailbox.take_nowait()) is not None:
        taken.append(event)
    assert _letters([event for event in taken if event is not None]) == _letters(put)


def test_a_late_readers_log_probabilities_come_in_bounded_runs() -> None:
    """A run is encoded at once: a thousand tokens with twenty alternatives each are two megabytes of JSON."""
    mailbox = Mailbox()
    entry = TokenLogprobs.of(1, -1.0, (), lambda token_id: b"a")
    for _ in range(100):
        mailbox.put(TextDelta("a", (entry,)))
    events = [event for _ in range(5) if isinstance(event := mailbox.take_nowait(), TextDelta)]
    assert [len(event.logprobs) for event in events] == [32, 32, 32, 4]
    assert "".join([event.text for event in events]) == "a" * 100


def _letters(events: Sequence[StreamEvent]) -> list[object]:
    """Without how they were merged."""
    found: list[object] = []
    for event in events:
        match event:
            case ToolCallArguments(index=index, text=text):
                found += [(index, letter) for letter in text]
            case TextDelta(text=text) | ReasoningDelta(text=text):
                found += [(type(event), letter) for letter in text]
            case _:
                found.append(event)
    return found
