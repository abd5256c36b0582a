"""Scrape the target's own metrics while it is under load, to compare them with the client's figures."""

from __future__ import annotations

import re
from collections import deque

import httpx
import trio

from loadtests.record import ServerSample

_SAMPLE = re.compile(r"^((?:penstock_|vllm:|rapid_mlx_|vllm_mlx_)\w+(?:\{[^}]*\})?) (\S+)", re.M)
_DROPPED = re.compile(r"_(bucket|created)(\{|$)")
"""Histograms' buckets would be nine tenths of the record; the comparison uses their sums and counts."""

_CANCELLED = re.compile(
    r'penstock_requests_total\{(.*,)?outcome="cancelled"|rapid_mlx_requests_cancelled_via_disconnect_total'
)
"""The counters of requests whose client disconnected, one for each model, if a target has any."""


def parse(text: str) -> dict[str, float]:
    """Parse samples of Prometheus's text format by name and labels, of the known servers."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        if not _DROPPED.search(name):
            try:
                found[name] = float(value)
            except ValueError:
                continue
    return found


class Scraper:
    """Samples `url` while `run` runs; reports when requests whose client had disconnected were freed."""

    def __init__(self, client: httpx.AsyncClient, url: str, started: float) -> None:
        self._client = client
        self._url = url
        self._started = started
        self._waiting: deque[tuple[int, float]] = deque()
        self._seen_cancelled: float | None = None
        self.samples: list[ServerSample] = []
        self.freed: dict[int, float] = {}
        """Seconds from a disconnect to the target's own count of it, by the request's index."""

    def hung_up(self, index: int) -> None:
        self._waiting.append((index, trio.current_time()))

    async def run(self) -> None:
        """Sample once a second; twenty times a second while a disconnect has not been counted."""
        while True:
            await self.sample()
            await trio.sleep(0.05 if self._waiting else 1.0)

    async def sample(self, keep: bool = False) -> None:
        """Scrape once. `keep` stores it regardless of the time since the last: a run's first and last are its
        bounds."""
        try:
            response = await self._client.get(self._url)
        except httpx.HTTPError:
            return
        now = trio.current_time()
        samples = parse(response.text)
        if not samples:
            return
        self._match(samples, now)
        # Between the seconds only the count of disconnects matters.
        if keep or not self.samples or now - self._started - self.samples[-1].at >= 0.9:
            self.samples.append(ServerSample(at=now - self._started, samples=samples))

    def _match(self, samples: dict[str, float], now: float) -> None:
        """Match disconnects first to first. The target counts them in its own order, but the mean is right in
        any order, and each is at most one poll late."""
        counts = [value for name, value in samples.items() if _CANCELLED.match(name)]
        if not counts:
            self._waiting.clear()
            return
        cancelled = sum(counts)
        newly = cancelled - (self._seen_cancelled if self._seen_cancelled is not None else cancelled)
        self._seen_cancelled = cancelled
        for _ in range(round(newly)):
            if self._waiting:
                index, left_at = self._waiting.popleft()
                self.freed[index] = now - left_at
