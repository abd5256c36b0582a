"""Read samples of a registry, as a query without the other labels would: summed over engines."""

from __future__ import annotations

from prometheus_client import CollectorRegistry


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """Return the sum of the series of this name that have these labels, among others. Raise KeyError if there
    are none."""
    found = [
        one.value
        for family in registry.collect()
        for one in family.samples
        if one.name == name and labels.items() <= one.labels.items()
    ]
    if not found:
        raise KeyError(f"no sample {name} {labels}")
    return sum(found)
