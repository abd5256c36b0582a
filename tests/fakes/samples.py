"""Read samples of a registry, as a query without the other labels would: summed over engines."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """Return the sum of the series of this name that have these labels, among others. Raise KeyError if there
    are none."""
    # The restricted one has no collector that does not describe what it collects.
    for part in (registry.restricted_registry([name]), registry):
        families: Iterable[Metric] = part.collect()
        found = [
            one.value
            for family in families
            for one in family.samples
            if one.name == name and labels.items() <= one.labels.items()
        ]
        if found:
            return sum(found)
    raise KeyError(f"no sample {name} {labels}")
