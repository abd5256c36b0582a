"""What the scripted engine caches: runs of tokens without arrays."""

from __future__ import annotations

from dataclasses import dataclass

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
