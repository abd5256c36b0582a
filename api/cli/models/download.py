"""Fetch a model's files into the hub's cache: several at a time, resumed where they were cut, and checked.

The layout is huggingface_hub's, so that all programs that read its cache find the files. huggingface_hub
itself is not used, because it throws a partial file away and does not check the hub's checksum. A partial
file is `blobs/ETAG.incomplete`; the reference to a revision is written last, when all files are there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx
import trio

from api.cli.errors import OperatorError
from api.cli.models.hub import HubFile, HubListing
from api.download_progress import DownloadProgress
from scheduler.prompt.hub_refusals import gated, refused, unreachable
from scheduler.shared.gigabytes import gigabytes

_TIMEOUT = httpx.Timeout(20.0, connect=15.0)
"""The first number bounds the silence of a download."""
_TRIES, _PAUSE_SECONDS = 5, 1.0
"""Tries in a row without a byte; pauses double."""
_READ_BYTES = 1 << 20
_AT_A_TIME = 4
_SPARE_BYTES = 256 << 20
"""Bytes that must stay free on the disk beside the files."""


@dataclass(frozen=True, slots=True)
class Result:
    """The folder of a downloaded model, and how its files were checked."""

    folder: Path
    fetched_bytes: int
    sha256_files: int
    """Number of files that were compared with the hub's SHA-256."""
    git_files: int
    """Number of files that were compared with git's SHA-1, which the hub has for small files."""
    present_files: int
    """Number of files that were there in their full size, and were not read again."""


@dataclass(slots=True)
class Download:
    """The download of one commit's files into `cache`. The `token` is sent to the hub's `endpoint` only."""

    listing: HubListing
    cache: Path
    endpoint: str
    token: str | None
    progress: DownloadProgress = field(default_factory=DownloadProgress)
    free_bytes: Callable[[Path], int] = field(default=lambda path: shutil.disk_usage(path).free)
    pause: Callable[[float], Any] = trio.sleep
    fetched_bytes: int = 0
    checked: list[HubFile] = field(default_factory=list)

    @property
    def repository(self) -> Path:
        return self.cache / f"models--{self.listing.model.replace('/', '--')}"

    @property
    def snapshot(self) -> Path:
        return self.repository / "snapshots" / self.listing.commit

    def missing(self) -> list[HubFile]:
        """Return files whose blob is not there in its full size."""
        return [file for file in self.listing.files if _size(self._blob(file)) != file.nbytes]

    @property
    def missing_bytes(self) -> int:
        """Return the bytes to download, without those of partial files; equal files count once."""
        missing = {file.etag: file for file in self.missing()}.values()
        return sum(max(0, file.nbytes - max(0, _size(self._half(file)))) for file in missing)

    def check_disk(self) -> None:
        """Raise OperatorError if the files do not fit on the disk."""
        needed = self.missing_bytes
        free = self.free_bytes(existing(self.cache))
        if needed and needed + _SPARE_BYTES > free:
            raise OperatorError(
                f"{self.listing.model} needs {gigabytes(needed)} more in {self.cache}, and"
                f" {gigabytes(_SPARE_BYTES)} to spare; {gigabytes(free)} are free:\n"
                "make room (penstock models, penstock rm), or set HF_HOME to another disk"
            )

    async def run(self, after_small: Callable[[Path], None] = lambda snapshot: None) -> Result:
        """Fetch what is missing. `after_small` is called with the snapshot when all but the weights are
        there, and may raise. Raise OperatorError; partial files stay, for the next call."""
        present = [file for file in self.listing.files if file not in self.missing()]
        try:
            (self.repository / "blobs").mkdir(parents=True, exist_ok=True)
            async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=True) as http:
                small = [file for file in self.listing.files if not file.path.endswith(".safetensors")]
                large = [file for file in self.listing.files if file.path.endswith(".safetensors")]
                await self._fetch_all(http, small)
                await trio.to_thread.run_sync(after_small, self.snapshot)
                await self._fetch_all(http, large)
            self._refer()
        except OSError as error:
            raise OperatorError(f"{self.cache} cannot be written: {error.strerror or error}") from error
        large_checked = sum(file.is_large for file in self.checked)
        return Result(
            self.snapshot,
            self.fetched_bytes,
            large_checked,
            len(self.checked) - large_checked,
            len(present),
        )

    async def _fetch_all(self, http: httpx.AsyncClient, files: list[HubFile]) -> None:
        limit = trio.CapacityLimiter(_AT_A_TIME)
        failures: list[Exception] = []
        # Equal files share one blob.
        blobs = {file.etag: file for file in files}

        async def one(file: HubFile) -> None:
            async with limit:
                try:
                    await self._fetch(http, file)
                except (OperatorError, OSError) as error:
                    failures.append(error)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for file in blobs.values():
                nursery.start_soon(one, file)
        if failures:
            raise failures[0]
        for file in files:
            self._link(file)

    async def _fetch(self, http: httpx.AsyncClient, file: HubFile) -> None:
        blob, half = self._blob(file), self._half(file)
        if _size(blob) == file.nbytes:
            return
        with _locked(half) as stream:
            had_bytes = stream.seek(0, os.SEEK_END)
            if had_bytes > file.nbytes:
                stream.truncate(0)
                had_bytes = 0
            self.progress.begin(file, had_bytes)
            await self._fill(http, file, stream)
            stream.flush()
            found = await trio.to_thread.run_sync(digest, half, file)
            if found != file.etag and had_bytes:
                self.progress.note(f"{file.path}: what was there is damaged, fetched again from its start")
                self.progress.advance(file, -file.nbytes)
                stream.truncate(0)
                await self._fill(http, file, stream)
                stream.flush()
                found = await trio.to_thread.run_sync(digest, half, file)
            if found != file.etag:
                half.unlink()
                raise OperatorError(
                    f"{file.path} is damaged: its checksum is {found[:12]}, the hub's {file.etag[:12]}\n"
                    "it was deleted: pull again; if it stays so, something on the way changes it"
                )
            os.fsync(stream.fileno())
            half.replace(blob)
        self.checked.append(file)
        self.progress.done(file)

    async def _fill(self, http: httpx.AsyncClient, file: HubFile, stream: BinaryIO) -> None:
        """Append to the file until it has its full size. Raise OperatorError."""
        failed = 0
        while (have := stream.seek(0, os.SEEK_END)) < file.nbytes:
            try:
                await self._append(http, file, stream, have)
                reason: Exception = OSError("the connection was closed early")
            except (httpx.TransportError, httpx.StreamError) as error:
                reason = error
            got = stream.seek(0, os.SEEK_END) - have
            if have + got >= file.nbytes:
                break
            failed = 1 if got > 0 else failed + 1
            if failed >= _TRIES:
                raise OperatorError(f"{file.path}: {unreachable(reason)}\npull again to go on from here")
            await self.pause(_PAUSE_SECONDS * 2 ** (failed - 1))

    async def _append(self, http: httpx.AsyncClient, file: HubFile, stream: BinaryIO, have: int) -> None:
        # A compressed answer has no ranges. httpx drops the token where a redirect leaves the host.
        headers = {"accept-encoding": "identity"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        if have:
            headers["range"] = f"bytes={have}-"
        async with http.stream("GET", self._url(file), headers=headers) as answer:
            self._check_status(file, answer)
            if have and answer.status_code == 200:
                # The server ignored the range, and sends the file from its start.
                self.progress.advance(file, -have)
                stream.truncate(0)
                stream.seek(0)
                have = 0
            # Raw and as they come: bytes that wait for a full buffer are lost if the connection is cut.
            async for chunk in answer.aiter_raw():
                chunk = chunk[: file.nbytes - have]
                stream.write(chunk)
                have += len(chunk)
                self.fetched_bytes += len(chunk)
                self.progress.advance(file, len(chunk))

    def _check_status(self, file: HubFile, answer: httpx.Response) -> None:
        """Raise OperatorError for a refusal, or httpx.TransportError for one that a retry may pass."""
        status, model = answer.status_code, self.listing.model
        if status in (200, 206):
            return
        if answer.headers.get("x-error-code") == "GatedRepo":
            raise OperatorError(gated(model))
        if status == 404:
            raise OperatorError(f"the hub lists {file.path} of {model}, and does not have it (404)")
        if status in (408, 416, 425, 429) or status >= 500:
            raise httpx.RemoteProtocolError(f"the hub answers {status}")
        raise OperatorError(refused(model, status))

    def _url(self, file: HubFile) -> str:
        path = "/".join(quote(part, safe="") for part in file.path.split("/"))
        return f"{self.endpoint}/{self.listing.model}/resolve/{self.listing.commit}/{path}"

    def _blob(self, file: HubFile) -> Path:
        return self.repository / "blobs" / file.etag

    def _half(self, file: HubFile) -> Path:
        return self.repository / "blobs" / f"{file.etag}.incomplete"

    def _link(self, file: HubFile) -> None:
        link = self.snapshot / file.path
        link.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(self._blob(file), link.parent)
        if not (link.is_symlink() and os.readlink(link) == target):
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def _refer(self) -> None:
        if self.listing.revision != self.listing.commit:
            reference = self.repository / "refs" / self.listing.revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_text(self.listing.commit, "utf-8")


def digest(path: Path, file: HubFile) -> str:
    """Return the checksum of the kind that the hub has for this file."""
    checksum = hashlib.sha256() if file.is_large else hashlib.sha1(f"blob {file.nbytes}\0".encode())
    with path.open("rb") as stream:
        while chunk := stream.read(_READ_BYTES):
            checksum.update(chunk)
    return checksum.hexdigest()


@contextmanager
def _locked(half: Path) -> Iterator[BinaryIO]:
    """Open and lock a partial file: two writers would mix their bytes. The lock ends with the process that
    holds it. Raise OperatorError if another process holds it."""
    with half.open("ab+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OperatorError("another penstock pulls this model: wait for it") from error
        try:
            yield stream
        finally:
            if _size(half) == 0:
                half.unlink()


def _size(path: Path) -> int:
    """Return the file's size, or -1 if it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists, to ask for its disk's free space."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
