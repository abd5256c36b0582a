"""The target's own metrics over the run, beside its clients' figures. Supports Penstock's and vLLM's
names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from loadtests.percentiles import mean
from loadtests.record import Outcome, RequestRecord, RunRecord, ServerSample
from loadtests.window import output_tokens, ttft

FORMULA = (
    "Server: growth of its counters from the first scrape to the last, warm-up included (gauges: the largest"
    " value scraped). Client: the same of all requests of the run, whenever sent and of every population."
)


@dataclass(frozen=True, slots=True)
class Beside:
    """One quantity, as the target's metrics and as its clients report it."""

    label: str
    unit: str
    server: float | None
    client: float | None


_NAME = re.compile(r"^([^{]+)(?:\{(.*)\})?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_SAME_TOKENS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Prompt tokens", ("penstock_prompt_tokens_total", "vllm:prompt_tokens_total")),
    ("Generated tokens", ("penstock_generated_tokens_total", "vllm:generation_tokens_total")),
)
_OUTCOMES = (
    ("penstock_requests_total", "outcome"),
    ("vllm:request_success_total", "finished_reason"),
)
_TTFT = ("penstock_time_to_first_token_seconds", "vllm:time_to_first_token_seconds")
_QUEUES = ("penstock_queued_requests", "vllm:num_requests_waiting")
_PREEMPTIONS = ("penstock_preemptions_total", "vllm:num_preemptions_total")


class _Growth:
    """Sums over all label sets of one name, and their growth between scrapes."""

    def __init__(self, samples: tuple[ServerSample, ...]) -> None:
        self._scrapes: list[dict[str, list[tuple[dict[str, str], float]]]] = []
        for sample in samples:
            scrape: dict[str, list[tuple[dict[str, str], float]]] = {}
            for key, value in sample.samples.items():
                if match := _NAME.match(key):
                    labels = dict(_LABEL.findall(match[2] or ""))
                    scrape.setdefault(match[1], []).append((labels, value))
            self._scrapes.append(scrape)

    def growth(self, name: str, **labels: str) -> float | None:
        """Return the growth of all series together, or None with fewer than two scrapes. A series that fell
        was reset and counts anew; one that is gone has not fallen: its engine has left."""
        scrapes = [
            {
                frozenset(found.items()): value
                for found, value in scrape[name]
                if labels.items() <= found.items()
            }
            for scrape in self._scrapes
            if name in scrape
        ]
        if len(scrapes) < 2:
            return None
        return sum(
            value - past if value >= (past := before.get(series, 0.0)) else value
            for before, after in pairwise(scrapes)
            for series, value in after.items()
        )

    def most(self, name: str) -> float | None:
        return max(
            (sum(v for _, v in scrape[name]) for scrape in self._scrapes if name in scrape), default=None
        )

    def values(self, name: str, label: str) -> list[str]:
        return sorted(
            {found[label] for scrape in self._scrapes for found, _ in scrape.get(name, []) if label in found}
        )

    def first(self, names: Iterable[str]) -> float | None:
        return next((value for name in names if (value := self.growth(name)) is not None), None)


def server_side(run: RunRecord) -> list[Beside]:
    """Return the quantities that the target reports; empty if nothing was scraped."""
    growth, requests = _Growth(run.server), run.requests
    rows = [
        Beside(
            "Prompt tokens",
            "tokens",
            growth.first(_SAME_TOKENS[0][1]),
            _total(r.prompt_tokens for r in requests),
        ),
        Beside("Prefilled tokens", "tokens", _prefilled(growth), _computed(requests)),
        Beside(
            "Generated tokens", "tokens", growth.first(_SAME_TOKENS[1][1]), sum(map(output_tokens, requests))
        ),
        Beside(
            "Mean TTFT", "s", _mean_ttft(growth), mean([t for r in requests if (t := ttft(r)) is not None])
        ),
        *_outcomes(growth, requests),
        Beside("Preemptions", "preemptions", growth.first(_PREEMPTIONS), None),
        Beside(
            "Longest queue",
            "requests",
            next((m for n in _QUEUES if (m := growth.most(n)) is not None), None),
            None,
        ),
    ]
    return [row for row in rows if row.server is not None]


def _total(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _computed(requests: Iterable[RequestRecord]) -> float | None:
    return _total(
        r.prompt_tokens - r.cached_tokens
        if r.prompt_tokens is not None and r.cached_tokens is not None
        else None
        for r in requests
    )


def _prefilled(growth: _Growth) -> float | None:
    own = growth.growth("penstock_prefilled_tokens_total")
    if own is not None:
        return own
    if growth.values("vllm:prompt_tokens_by_source_total", "source"):
        return growth.growth("vllm:prompt_tokens_by_source_total", source="local_compute")
    prompts, hits = growth.growth("vllm:prompt_tokens_total"), growth.growth("vllm:prefix_cache_hits_total")
    return None if prompts is None or hits is None else prompts - hits


def _mean_ttft(growth: _Growth) -> float | None:
    for name in _TTFT:
        seconds, count = growth.growth(f"{name}_sum"), growth.growth(f"{name}_count")
        if seconds is not None and count:
            return seconds / count
    return None


_CLIENT: dict[str, Callable[[RequestRecord], bool]] = {
    "stop": lambda r: r.outcome is Outcome.OK and r.finish_reason in ("stop", "tool_calls"),
    "length": lambda r: r.outcome is Outcome.OK and r.finish_reason == "length",
    "cancelled": lambda r: r.outcome is Outcome.HUNG_UP,
    "abort": lambda r: r.outcome is Outcome.HUNG_UP,
    "rejected": lambda r: r.outcome is Outcome.REFUSED,
    "invalid": lambda r: r.outcome is Outcome.HTTP_ERROR and 400 <= (r.status or 0) < 500,
    "error": lambda r: (
        r.outcome is Outcome.STREAM_ERROR or ((r.status or 0) >= 500 and r.outcome is Outcome.HTTP_ERROR)
    ),
}
"""The client's outcomes of requests that the target counts under this outcome."""


def _outcomes(growth: _Growth, requests: tuple[RequestRecord, ...]) -> list[Beside]:
    for name, label in _OUTCOMES:
        if values := growth.values(name, label):
            return [
                Beside(
                    f"Requests ended: {value}",
                    "requests",
                    growth.growth(name, **{label: value}),
                    sum(map(_CLIENT[value], requests)) if value in _CLIENT else None,
                )
                for value in values
            ]
    return []
