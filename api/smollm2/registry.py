"""One wheel from the Python package registry, known by its SHA-256: nothing of it is run or imported.

pip is not used: an installation by uv has none, and quiet or not it shows no progress that fits our own.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

import certifi
import httpx

from scheduler.errors import StartupError
from scheduler.shared.gigabytes import gigabytes

_PUBLIC_INDEX: Final = "https://pypi.org/simple"
_INDEX_VARIABLES: Final = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_TIMEOUT: Final = httpx.Timeout(20.0, connect=10.0)
"""The first number bounds the silence of a download."""
_TRIES: Final = 4
"""Tries in a row without a byte; pauses grow."""
_PAUSE_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 3.0
"""How often a line says how far it is."""


@dataclass(frozen=True, slots=True)
class Wheel:
    project: str
    path: str
    """The name of its file."""
    nbytes: int
    sha256: str


def fetch(
    wheel: Wheel,
    file: Path,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    transport: httpx.BaseTransport | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Write the wheel to `file`. What is there of it already is kept, also for the next call if this one
    fails. Raise StartupError, or OSError if it cannot be written."""
    index = next(filter(None, map(environment.get, _INDEX_VARIABLES)), _PUBLIC_INDEX)
    host = ""
    with suppress(ValueError):
        host = urlsplit(index).hostname or ""
    if environment.get("PIP_NO_INDEX") or not host or not index.startswith(("http://", "https://")):
        raise StartupError(f"pip's settings allow no registry on the network: {wheel.path} is not fetched")
    if _size(file) > wheel.nbytes:
        file.unlink()
    # A company's proxy signs with an authority of its own, which the system trusts, beside Mozilla's.
    trusted = ssl.create_default_context(cafile=certifi.where())
    trusted.load_default_certs()
    with httpx.Client(timeout=_TIMEOUT, follow_redirects=True, verify=trusted, transport=transport) as http:
        try:
            url = _url_of(http, f"{index.rstrip('/')}/{wheel.project}/", wheel)
            _download(http, url, wheel, file, say, pause)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise StartupError(
                f"{host} cannot be reached ({reason}): check the network, HTTPS_PROXY and PIP_INDEX_URL"
            ) from error
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != wheel.sha256:
        file.unlink()
        raise StartupError(
            f"{wheel.path} from {host} is damaged: its SHA-256 is {found[:12]}..., not {wheel.sha256[:12]}..."
        )


def _url_of(http: httpx.Client, page: str, wheel: Wheel) -> str:
    """Return where the project's page says that the file is. Raise StartupError if it has none."""
    answer = http.get(page, headers={"accept": "text/html"})
    if answer.status_code >= 500:
        raise httpx.RemoteProtocolError(f"it answers {answer.status_code}")
    if answer.status_code == 200:
        for link in re.findall(r"""<a\s[^>]*?href\s*=\s*["']([^"']+)""", answer.text):
            url = urljoin(str(answer.url), unescape(link)).partition("#")[0]
            if unquote(urlsplit(url).path).rpartition("/")[2] == wheel.path:
                return url
    host = urlsplit(page).hostname
    raise StartupError(f"{host} has no {wheel.path} ({answer.status_code})")


def _download(
    http: httpx.Client,
    url: str,
    wheel: Wheel,
    file: Path,
    say: Callable[[str], None],
    pause: Callable[[float], None],
) -> None:
    """Append to the file until it has its full size. Raise httpx.HTTPError after the last try."""
    failed, reported = 0, time.monotonic()
    while (have := _size(file)) < wheel.nbytes:
        reason: Exception = httpx.ReadError("the connection was closed early")
        # A compressed answer has no ranges.
        headers = {"accept-encoding": "identity", **({"range": f"bytes={have}-"} if have else {})}
        try:
            with http.stream("GET", url, headers=headers) as answer:
                if answer.status_code not in (200, 206):
                    raise httpx.RemoteProtocolError(f"it answers {answer.status_code}")
                with file.open("ab" if answer.status_code == 206 else "wb") as stream:
                    # As they come: bytes that wait for a full buffer are lost if the connection is cut.
                    for chunk in answer.iter_raw():
                        stream.write(chunk[: wheel.nbytes - stream.tell()])
                        if time.monotonic() - reported >= _LINE_SECONDS:
                            reported = time.monotonic()
                            say(f"{gigabytes(stream.tell())} of {gigabytes(wheel.nbytes)}")
        except (httpx.TransportError, httpx.StreamError) as error:
            reason = error
        failed = 0 if _size(file) > have else failed + 1
        if failed == _TRIES:
            raise reason
        pause(_PAUSE_SECONDS * failed)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
