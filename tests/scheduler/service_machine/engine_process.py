"""One life of an engine as its link shows it: it keeps the protocol, reads late and dies anywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

import msgspec
import trio

from scheduler.engine.budget.limits import divided
from scheduler.errors import LinkError
from scheduler.events import FinishReason
from scheduler.processes.channel import Channel
from scheduler.processes.process import Exit, LaunchFailed, Session
from scheduler.shared.framing import encode, engine_inbound
from scheduler.shared.messages import (
    Alive,
    Begun,
    Cancel,
    Counters,
    Fault,
    FromEngine,
    Inspect,
    Inspection,
    Load,
    LogprobsOut,
    MemoryState,
    PrefillOut,
    PromptLogprobsOut,
    Pulse,
    Ready,
    Retired,
    RetireReason,
    StepOutput,
    Submit,
    ToEngine,
    TokenOut,
)
from scheduler.shared.waits import WaitReason, Waits
from scheduler.shared.wire_struct import WireStruct
from tests.fakes.byte_tokenizer import EOS
from tests.scheduler.engines.engine_lives import READY, LivesLauncher

DEVICE_BYTES, FLOOR_BYTES = 4_000_000, 900_000
UNSENDABLE = 7
"""A prompt with this token makes no frame."""
WAITS: Sequence[WaitReason] = ("slot", "prefix", "kv_cache", "memory", "preparation")


def token_at(prompt: Sequence[int], seed: int | None, place: int) -> int:
    """Return the token that every engine computes there: a letter, "!", or the end."""
    draw = crc32(f"{tuple(prompt[:3])} {len(prompt)} {seed} {place}".encode())
    return (EOS, ord("!"))[draw % 25] if draw % 25 < 2 else ord("abcdefh"[draw // 25 % 7])


def whole_answer(submit: Submit, stop: Sequence[str]) -> tuple[str, FinishReason, int]:
    """Return the text, the end and the number of tokens of the answer that nothing disturbs."""
    text = ""
    for place in range(submit.max_tokens):
        if (token := token_at(submit.prompt, submit.sampling.seed, place)) == EOS:
            return text, FinishReason.STOP, place + 1
        text += chr(token)
        for one in stop:
            if text.endswith(one):
                return text.removesuffix(one), FinishReason.STOP, place + 1
    return text, FinishReason.LENGTH, submit.max_tokens


@dataclass(eq=False)
class Row:
    """A request that the engine has. `done`: its output tokens; `computed`, `scored`: those of its prompt."""

    submit: Submit
    prompt: Sequence[int]
    done: int
    computed: int = 0
    scored: int = 1
    has_slot: bool = False


@dataclass(eq=False)
class EngineProcess:
    """It answers when it is ready and `step` is called. `exit`, `exit_seconds`: how it ends when its link
    has, and how long that takes."""

    slots: int
    ready: bool = False
    dead: bool = False
    exit: Exit = field(default_factory=lambda: Exit(-9))
    exit_seconds: float = 0.0
    inbox: list[ToEngine] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._ended: set[int] = set()
        self._adapters: set[str] = set()
        self._waits = Waits()
        self.limit_bytes = self._whole_bytes = self._steps = 0

    async def live(self, link: trio.abc.Stream) -> None:
        """Put what comes into the inbox, for a step to read it."""
        self._link = link
        reader = engine_inbound()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await link.receive_some():
                for message in reader.feed(data):
                    match message:
                        case Load(memory_part=part, sharers=sharers):
                            self._adapters = {one.key for one in message.adapters}
                            if part is not None:
                                own = (DEVICE_BYTES // sharers, part, sharers, FLOOR_BYTES)
                                self.limit_bytes, self._whole_bytes, _ = divided(*own, on_cpu=True)
                        case Pulse():
                            await self.send(Alive(0.0))
                        case _:
                            self.inbox.append(message)
        self.dead = True

    async def send(self, *messages: FromEngine) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._link.send_all(b"".join(map(encode, messages)))

    async def end(self, exit_: Exit, seconds: float, *last: FromEngine) -> None:
        """Send these frames, after which the server ends it."""
        self.exit, self.exit_seconds, self.dead = exit_, seconds, True
        await self.send(*last)

    async def die(self, exit_: Exit, seconds: float) -> None:
        await self.end(exit_, seconds)
        await trio.aclose_forcefully(self._link)

    def report(self, vocabulary: int = READY.vocabulary) -> Ready | Fault:
        if self._whole_bytes and self.limit_bytes < FLOOR_BYTES:
            return Fault("its part of the memory is too small")
        return msgspec.structs.replace(
            READY,
            vocabulary=vocabulary,
            memory_limit_bytes=self.limit_bytes,
            memory_whole_bytes=self._whole_bytes,
            memory_floor_bytes=FLOOR_BYTES if self._whole_bytes else 0,
        )

    @property
    def coming(self) -> set[int]:
        """Return the requests that were submitted to it, and that it has not read yet."""
        return {one.request_id for one in self.inbox if isinstance(one, Submit)}

    def read(self, most: int | None = None) -> list[FromEngine]:
        """Read commands, and return the frames that answer at once."""
        commands = self.inbox[:most]
        del self.inbox[:most]
        answers: list[FromEngine] = []
        retired: list[Retired] = []
        for command in commands:
            match command:
                case Submit():
                    self._begin(command)
                case Cancel(request_id=number):
                    assert number not in self.cancelled, f"{number} was cancelled twice"
                    assert number in self.rows or number in self._ended, f"it never had {number}"
                    self.cancelled.add(number)
                    if number in self.rows:
                        retired.append(self._retire(Retired(number, "cancelled")))
                case Inspect(query=query):
                    answers.append(Inspection(query, 0, None))
                case _:
                    pass
        return [*answers, StepOutput([], [], retired, self._counters)] if retired else answers

    def _begin(self, submit: Submit) -> None:
        number, length = submit.request_id, len(submit.prompt) - submit.done_tokens
        prompt, done = submit.prompt[:length], submit.prompt[length:]
        assert number not in self.rows.keys() | self._ended, f"{number} was submitted twice"
        assert not submit.adapter or submit.adapter in self._adapters, "its adapter is not loaded"
        made = [token_at(prompt, submit.sampling.seed, place) for place in range(len(done))]
        assert list(done) == made, "it is resumed with other tokens than were computed"
        self.rows[number] = Row(submit, prompt, len(done))

    def _retire(self, retired: Retired) -> Retired:
        del self.rows[retired.request_id]
        self._waits.forget(retired.request_id)
        self._ended.add(retired.request_id)
        return retired

    @property
    def _counters(self) -> Counters:
        running = sum(row.has_slot for row in self.rows.values())
        guard = MemoryState(used=min(FLOOR_BYTES, self.limit_bytes), limit=self.limit_bytes)
        return Counters(steps=self._steps, running=running, guard=guard)

    def step(self, draw: random.Random, healthy: bool = False) -> list[FromEngine]:
        """Compute one step: preempt, admit, prefill and decode. One that is not `healthy` is late with all of
        it, and may end a request for its own reasons."""

        def happens(share: float) -> bool:
            return not healthy and draw.random() < share

        frames = self.read(draw.randrange(3) if happens(0.2) else None)
        now = trio.current_time()
        for number, row in self.rows.items():
            if row.has_slot and happens(0.08):
                row.has_slot, row.computed = False, 0
                self._waits.preempted(number, now)
        waiting: dict[int, WaitReason] = {}
        for number, row in self.rows.items():
            if row.has_slot:
                continue
            if sum(one.has_slot for one in self.rows.values()) < self.slots and not happens(0.3):
                row.has_slot = True
                self._waits.admitted(number, now)
            else:
                waiting[number] = draw.choice(WAITS)
        self._waits.look(waiting, now)
        active = {number: row for number, row in self.rows.items() if row.has_slot}
        self._steps += 1
        output = StepOutput([], [], [], Counters(), [], [])
        for number, row in active.items():
            if happens(0.02):
                reason: RetireReason = "failed" if draw.random() < 0.7 else "grammar"
                output.retired.append(self._retire(Retired(number, reason, "on purpose")))
            elif not happens(0.15) and self._prefilled(row, output, draw.choice([1, 100, 400])):
                self._decode(row, output, draw.choice([0, 1, 1, 2, 4]))
        waits = self._waits.take(now)
        output = msgspec.structs.replace(output, counters=self._counters, waits=waits)
        some = output.tokens or output.prefills or output.retired or waits
        return [*frames, Begun("prefill", tuple(active)), *([output] if some else [])]

    def _prefilled(self, row: Row, output: StepOutput, most: int) -> bool:
        """Compute of its prompt, and return whether it is whole."""
        number, total = row.submit.request_id, len(row.prompt)
        if row.computed < total:
            row.computed = min(total, row.computed + most)
            if not row.submit.done_tokens:
                output.prefills.append(PrefillOut(number, row.computed, total, 0))
            scored = min(row.computed, total - 1) + 1
            if row.submit.prompt_logprobs is not None and row.scored < scored:
                scores = [LogprobsOut(-1.0)] * (scored - row.scored)
                output.prompt_logprobs.append(PromptLogprobsOut(number, row.scored, scores))
                row.scored = scored
        return row.computed == total

    def _decode(self, row: Row, output: StepOutput, tokens: int) -> None:
        submit = row.submit
        for _ in range(tokens):
            token = token_at(row.prompt, submit.sampling.seed, row.done)
            row.done += 1
            output.tokens.append(TokenOut(submit.request_id, token))
            if token in submit.stop_token_ids or row.done >= submit.max_tokens:
                reason: RetireReason = "stop" if token in submit.stop_token_ids else "length"
                output.retired.append(self._retire(Retired(submit.request_id, reason)))
                break


class NarrowChannel(Channel):
    """Its bound of frames is below some prompts."""

    def send_nowait(self, message: WireStruct) -> None:
        if isinstance(message, Submit) and UNSENDABLE in message.prompt:
            raise LinkError("the message is too long")
        super().send_nowait(message)


@dataclass
class Machine:
    """Where processes run, by model and engine. The next `failing_launches` starts make no process."""

    slots: int
    processes: dict[tuple[int, int], EngineProcess] = field(default_factory=dict)
    failing_launches: int = 0


@dataclass
class ProcessesLauncher:
    """An `EngineLauncher` of `EngineProcess`es."""

    machine: Machine
    place: tuple[int, int]

    async def run(self, session: Session) -> Exit:
        if self.machine.failing_launches:
            self.machine.failing_launches -= 1
            raise LaunchFailed("no processes left")
        process = self.machine.processes[self.place] = EngineProcess(self.machine.slots)
        try:
            await LivesLauncher(process.live, channel=NarrowChannel).run(session)
        finally:
            process.dead = True
            with trio.move_on_after(process.exit_seconds, shield=True):
                await trio.sleep_forever()
            if self.machine.processes.get(self.place) is process:
                del self.machine.processes[self.place]
        return process.exit
