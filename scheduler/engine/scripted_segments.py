"""What the scripted engine caches, and exports: runs of tokens without arrays.

A file of its own because the back end's answers do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from scheduler.engine.disk.block_file import Content, HostArray
from scheduler.engine.prefix.nodes import Snapshot

KV_BYTES_PER_TOKEN = 64


@dataclass(frozen=True, slots=True)
class ScriptedRun:
    """A cached run: only its number of tokens."""

    tokens: int

    @property
    def nbytes(self) -> int:
        return KV_BYTES_PER_TOKEN * self.tokens

    def split(self, at: int) -> tuple[ScriptedRun, ScriptedRun]:
        return ScriptedRun(at), ScriptedRun(self.tokens - at)


class ScriptedCodec:
    """A `PrefixCodec` whose keys and values are zeros."""

    identity = MappingProxyType({"dtype": "none", "software": "scripted"})
    token_bytes = KV_BYTES_PER_TOKEN
    needs_state = False

    def span(self, pieces: Sequence[tuple[ScriptedRun, int]], start: int, end: int) -> Content:
        assert end <= sum(taken for _, taken in pieces), "a span of what is not cached"
        count = (end - start) * KV_BYTES_PER_TOKEN
        return Content({"run": HostArray("U8", (count,), bytes(count))})

    def check_span(self, span: Content, tokens: int) -> None:
        if span.arrays["run"].shape != (tokens * KV_BYTES_PER_TOKEN,):
            raise ValueError("a run of another length")

    def segment(self, spans: Iterable[Content], skip: int, tokens: int) -> ScriptedRun:
        assert (skip + tokens) * KV_BYTES_PER_TOKEN <= sum(span.nbytes for span in spans)
        return ScriptedRun(tokens)

    def state(self, snapshot: Snapshot) -> Content:
        raise ValueError("it has none")

    def snapshot(self, state: Content, tokens: int) -> Snapshot:
        raise ValueError("it has none")
