"""The target's own metrics, scraped before a run and after it, beside what its clients received."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import httpx
import trio

from loadtests.figures import output_tokens
from loadtests.record import RequestRecord, RunRecord, ServerSample

_SAMPLE = re.compile(r"^((?:penstock_|vllm:|rapid_mlx_|vllm_mlx_)\w+(?:\{[^}]*\})?) (\S+)", re.M)
_DROPPED = re.compile(r"_(bucket|created)(\{|$)")
"""Histograms' buckets would be nine tenths of the record."""


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter, by its name at Penstock and at vLLM and its forks, and what clients say of one request."""

    label: str
    names: tuple[str, ...]
    client: Callable[[RequestRecord], int | None] | None = None


_COUNTERS = (
    _Counter(
        "Prompt tokens",
        ("penstock_prompt_tokens_total", "vllm:prompt_tokens_total"),
        lambda request: request.prompt_tokens,
    ),
    _Counter(
        "Prefilled tokens",
        ("penstock_prefilled_tokens_total",),
        lambda one: (
            None if None in (one.prompt_tokens, one.cached_tokens) else one.prompt_tokens - one.cached_tokens  # type: ignore[operator]
        ),
    ),
    _Counter(
        "Generated tokens",
        ("penstock_generated_tokens_total", "vllm:generation_tokens_total"),
        output_tokens,
    ),
    _Counter("Preemptions", ("penstock_preemptions_total", "vllm:num_preemptions_total")),
)
FORMULA = "Growth of its counters from before the first request to after the last, of every population."


def parse(text: str) -> dict[str, float]:
    """Parse samples of Prometheus's text format by name and labels, of the known servers."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        if not _DROPPED.search(name):
            with suppress(ValueError):
                found[name] = float(value)
    return found


async def scrape(client: httpx.AsyncClient, url: str | None, started: float) -> tuple[ServerSample, ...]:
    """Return one sample, or none where the target has no metrics."""
    if url is None:
        return ()
    try:
        samples = parse((await client.get(url)).text)
    except httpx.HTTPError:
        return ()
    return (ServerSample(at=trio.current_time() - started, samples=samples),) if samples else ()


def server_side(run: RunRecord) -> Iterator[tuple[str, float, float | None]]:
    """Yield label, growth in the target's count, and the clients' sum."""
    if len(run.server) < 2:
        return
    first, last = run.server[0].samples, run.server[-1].samples
    for counter in _COUNTERS:
        growths = [_growth(first, last, name) for name in counter.names]
        if (growth := next((one for one in growths if one is not None), None)) is None:
            continue
        known = [value for r in run.requests if counter.client and (value := counter.client(r)) is not None]
        yield counter.label, growth, sum(known) if known else None


def _growth(first: Mapping[str, float], last: Mapping[str, float], name: str) -> float | None:
    """Return the growth of all series of this name; one that fell was reset and counts anew."""
    series = [key for key in last if key.partition("{")[0] == name]
    if not series:
        return None
    return sum(
        last[key] - (before if (before := first.get(key, 0.0)) <= last[key] else 0.0) for key in series
    )
