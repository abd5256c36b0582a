"""Current values of instruments, for the live page and the vLLM aliases."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram


def value_of(instrument: Counter | Gauge) -> float:
    """Return the value of one series: an instrument without labels, or a child of one with them."""
    (family,) = instrument.collect()
    return float(family.samples[0].value)


def buckets_of(*series: Histogram) -> tuple[dict[str, float], float]:
    """Return cumulative counts by upper edge, and the sum of observations, over `series` with the same
    buckets."""
    counts: dict[str, float] = {}
    total = 0.0
    for sample in (one for histogram in series for family in histogram.collect() for one in family.samples):
        if sample.name.endswith("_bucket"):
            counts[sample.labels["le"]] = counts.get(sample.labels["le"], 0.0) + sample.value
        elif sample.name.endswith("_sum"):
            total += sample.value
    return counts, total
