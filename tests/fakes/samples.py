"""Read samples of a registry, as a query without the other labels would: summed over engines."""

from __future__ import annotations

from prometheus_client import CollectorRegistry


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """Return the sum of the series of this name that have these labels, among others. Raise KeyError if there
    are none."""
    # Collecting all takes a millisecond, and is needed for collectors that do not say which names they have.
    for some in (registry.restricted_registry([name]), registry):
        found = [
            one.value
            for family in some.collect()
            for one in family.samples
            if one.name == name and labels.items() <= one.labels.items()
        ]
        if found:
            return sum(found)
    raise KeyError(f"no sample {name} {labels}")
