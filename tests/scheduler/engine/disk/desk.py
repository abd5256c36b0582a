"""A folder with a store on it, for tests of the disk tier's files."""

from __future__ import annotations

from pathlib import Path

from scheduler.engine.disk.block_chain import Chain, Place
from scheduler.engine.disk.block_file import encode
from scheduler.engine.disk.disk_folder import DiskFolder
from scheduler.engine.disk.disk_store import DiskStore
from tests.scheduler.engine.disk.disk_contents import MODEL, PLENTY, content_of, files_in, spelt


class Clock:
    """Seconds, as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A folder and the store on it, which can be closed and opened again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.folder: DiskFolder | None = None
        self.store = self.open()

    def open(self, budget: int = PLENTY, fingerprint: str = MODEL) -> DiskStore:
        self.close()
        self.folder = DiskFolder(self.path)
        self.store = DiskStore(self.folder, fingerprint, budget, self.clock)
        return self.store

    def close(self) -> None:
        if self.folder is not None:
            self.folder.release()
            self.folder = None

    def save(self, letters: str) -> list[bool]:
        """Every block of the chain."""
        chain = chain_of(letters)
        places = [chain.block(256 * count) for count in range(1, len(letters) + 1)]
        return [self._has(chain.path(place)) for place in places]

    def _has(self, path: tuple[Place, ...]) -> bool:
        return self.store.holds(path[-1]) or self.store.save(path, content_of(path[-1]))

    def touch(self, letters: str) -> None:
        chain = chain_of(letters)
        self.store.touch(chain.path(chain.block(256 * len(letters))))

    def held(self) -> set[str]:
        """Every block that is found, with all before it, as the letters of its chain."""
        chains = {"".join(letters) for n in range(1, 5) for letters in _words("abcx", n)}
        return {letters for letters in chains if self.matched(letters) == len(letters)}

    def matched(self, letters: str) -> int:
        """How many blocks of the chain are found."""
        return self.store.match(chain_of(letters), 256 * len(letters)) // 256

    def paused(self) -> bool:
        return self.store.paused

    def errors(self) -> dict[str, int]:
        counted = self.store.statistics().errors.items()
        return {kind: count for kind, count in counted if count}

    def file(self, letters: str) -> Path:
        return files_in(self.path)[block(letters).file_name]


def _words(alphabet: str, length: int) -> list[str]:
    return (
        [""] if length == 0 else [head + tail for head in alphabet for tail in _words(alphabet, length - 1)]
    )


def chain_of(letters: str, more: int = 0) -> Chain:
    return Chain(MODEL, "", spelt(letters, more))


def block(letters: str) -> Place:
    return chain_of(letters).block(256 * len(letters))


SIZE = sum(len(part) for part in encode(content_of(block("a")), block("a"), MODEL))
"""Every file that these tests write has this size, up to three blocks."""
