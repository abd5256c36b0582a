"""Make instruments: families in a registry, and one engine's series of families that have the label `engine`.

Series of known label values start at zero, so that `rate()` sees the first event.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

# `_created` samples, which nothing here uses, would be a third of the exposition.
disable_created_metrics()

ENGINE = "engine"
"""The label of whatever describes one engine process; vLLM's has the same name."""
_Family = TypeVar("_Family", Counter, Gauge, Histogram)


class Instruments:
    """Makes the families that describe the whole service. `labels`: by name, their values; empty if these are
    not known beforehand."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def gauge(self, name: str, help_: str, **labels: Collection[str]) -> Gauge:
        return _started(Gauge(name, help_, tuple(labels), registry=self._registry), labels.values())

    def counter(self, name: str, help_: str, **labels: Collection[str]) -> Counter:
        return _started(Counter(name, help_, tuple(labels), registry=self._registry), labels.values())

    def histogram(
        self, name: str, help_: str, buckets: Sequence[float], **labels: Collection[str]
    ) -> Histogram:
        family = Histogram(name, help_, tuple(labels), buckets=buckets, registry=self._registry)
        return _started(family, labels.values())


def _started(family: _Family, values: Collection[Collection[str]]) -> _Family:
    if values:
        for each in product(*values):
            family.labels(*each)
    return family


@dataclass(frozen=True, slots=True)
class EngineInstruments:
    """Makes one engine's series. `families`, which all engines share, are made for the first of them.

    The plural methods return the series of one more label by its values, so that a step looks nothing up."""

    registry: CollectorRegistry
    families: dict[str, Counter | Gauge | Histogram]
    engine: str

    def gauge(self, name: str, help_: str) -> Gauge:
        return self.family(name, help_).labels(self.engine)

    def gauges(self, name: str, help_: str, **label: Collection[str]) -> dict[str, Gauge]:
        ((key, values),) = label.items()
        family = self.family(name, help_, key)
        return {value: family.labels(self.engine, value) for value in values}

    def family(self, name: str, help_: str, *labels: str) -> Gauge:
        """Return a whole family: for labels whose values are not known beforehand."""
        return self._shared(name, Gauge(name, help_, (ENGINE, *labels), registry=None))

    def counter(self, name: str, help_: str) -> Counter:
        return self._shared(name, Counter(name, help_, (ENGINE,), registry=None)).labels(self.engine)

    def counters(self, name: str, help_: str, **label: Collection[str]) -> dict[str, Counter]:
        ((key, values),) = label.items()
        family = self._shared(name, Counter(name, help_, (ENGINE, key), registry=None))
        return {value: family.labels(self.engine, value) for value in values}

    def histogram(self, name: str, help_: str, buckets: Sequence[float]) -> Histogram:
        made = Histogram(name, help_, (ENGINE,), buckets=buckets, registry=None)
        return self._shared(name, made).labels(self.engine)

    def histograms(
        self, name: str, help_: str, buckets: Sequence[float], **label: Collection[str]
    ) -> dict[str, Histogram]:
        ((key, values),) = label.items()
        made = Histogram(name, help_, (ENGINE, key), buckets=buckets, registry=None)
        family = self._shared(name, made)
        return {value: family.labels(self.engine, value) for value in values}

    def _shared(self, name: str, made: _Family) -> _Family:
        """Return the registered family of this name: `made`, for the first engine."""
        found = self.families.get(name)
        if found is None:
            self.registry.register(made)
            self.families[name] = made
            return made
        assert isinstance(found, type(made)), f"{name} is declared twice"
        return found
