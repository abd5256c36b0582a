"""Prefill goes on beside decoding rows on a device that is three to ten times slower, and fast again."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.planning.prefill import LEAST_CHUNK_TOKENS
from tests.examples import examples

ROWS = 8
CONTEXT = 1000
FEW_STEPS = 10
"""How long a budget may stay at its floor."""
SOME_STEPS = 60
"""After which the learned lines are those of the device."""


@dataclass
class Device:
    """Steps in virtual time, each as large as the pace allows. `slower`: times a cool device's seconds."""

    decode_seconds: float
    token_seconds: float
    chunk_seconds: float
    slower: float = 1.0
    pace: PrefillPace = field(default_factory=lambda: PrefillPace(512))
    budgets: list[int] = field(default_factory=list)

    def step(self) -> None:
        """Decode all rows beside a chunk."""
        tokens = self.pace.budget(ROWS, 1, CONTEXT)
        decode = self.slower * self.decode_seconds
        chunk = self.slower * (self.chunk_seconds + tokens * self.token_seconds)
        self.pace.observe_prefill(chunk, tokens, CONTEXT)
        self.pace.observe_decode(decode, ROWS)
        self.budgets.append(tokens)

    def run(self, steps: int) -> list[int]:
        """Return the budgets of these steps."""
        for _ in range(steps):
            self.step()
        return self.budgets[-steps:]


DEVICES = st.builds(
    Device,
    decode_seconds=st.floats(0.005, 0.5),
    token_seconds=st.floats(0.00005, 0.005),
    chunk_seconds=st.floats(0.0, 0.1),
)


def longest_at_floor(budgets: list[int]) -> int:
    longest = now = 0
    for tokens in budgets:
        now = now + 1 if tokens <= LEAST_CHUNK_TOKENS else 0
        longest = max(longest, now)
    return longest


@settings(deadline=None, max_examples=examples(200))
@given(DEVICES, st.floats(3, 10), st.none() | st.tuples(st.floats(1.05, 6), st.floats(0, 0.1)))
def test_no_prompt_starves_on_a_device_that_is_slow_for_a_while(
    device: Device, slower: float, target: tuple[float, float] | None
) -> None:
    """Where a cool device leaves prefill more than the floor, a slow one does, too: the target is a multiple
    of its own decode step. What was learned follows down and up within tens of steps. Under a target in
    seconds no chunk may meet it while the device is hot; it leaves the floor when it has cooled down, though
    chunks of one size do not tell what a token takes."""
    if target is not None:
        device.pace = PrefillPace(512, target[0] * device.decode_seconds + target[1])
    cool = device.run(SOME_STEPS)[-1]
    device.slower = slower
    during = device.run(SOME_STEPS)
    device.slower = 1.0
    after = device.run(SOME_STEPS)
    if cool <= 2 * LEAST_CHUNK_TOKENS:
        return
    if target is None:
        assert longest_at_floor(during) <= FEW_STEPS, during
        assert cool / 2 <= during[-1] <= 2 * cool
        assert after[-1] <= 2 * cool
        assert after[-1] >= cool / 2
    assert longest_at_floor(after) <= (FEW_STEPS if target is None else 2 * FEW_STEPS), after
    assert after[-1] > LEAST_CHUNK_TOKENS


def test_chunks_of_one_size_do_not_hide_that_none_of_them_fits() -> None:
    """They say that a token costs nothing: the budget was the largest one, 1.5 times the target, for ever."""
    device = Device(
        decode_seconds=0.08011535406436572, token_seconds=0.0004682018165941629, chunk_seconds=0.099609375
    )
    cool = device.run(SOME_STEPS)[-1]
    device.slower = 5.0
    device.run(SOME_STEPS)
    device.slower = 1.0
    assert device.run(SOME_STEPS)[-1] <= 2 * cool
