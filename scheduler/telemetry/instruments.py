"""Make instruments, and read them: series of families that share some fixed labels, such as the model's name.

Series of known label values start at zero, so that `rate()` sees the first event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

# `_created` samples, which nothing here uses, would be a third of the exposition.
disable_created_metrics()

MODEL = "model"
"""The label of all series about one of the served models."""
ENGINE = "engine"
"""The label of all series about one engine process; vLLM's has the same name."""
_Family = TypeVar("_Family", Counter, Gauge, Histogram)


class Families:
    """Families of one registry, each made for the first that asks for it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._made: dict[str, Counter | Gauge | Histogram] = {}

    def shared(self, name: str, made: _Family) -> _Family:
        """Return the registered family of this name; the first call registers `made`."""
        found = self._made.get(name)
        if found is None:
            self._registry.register(made)
            self._made[name] = made
            return made
        assert isinstance(found, type(made)), f"{name} is declared twice"
        return found

    def forget(self, labels: Mapping[str, str]) -> None:
        """Remove the series with these labels, among others, from each family."""
        for family in self._made.values():
            family.remove_by_labels(dict(labels))


@dataclass(frozen=True, slots=True)
class OpenFamily(Generic[_Family]):
    """A family whose own labels have values that are not known beforehand; `fixed` labels come first."""

    family: _Family
    fixed: Mapping[str, str]

    def labels(self, *values: str) -> _Family:
        return self.family.labels(*self.fixed.values(), *values)

    def series(self) -> Iterator[dict[str, float | str]]:
        """Yield the labels of each series with the fixed ones, without these, and its `value`."""
        for family in self.family.collect():
            for sample in family.samples:
                if self.fixed.items() <= sample.labels.items():
                    own = {name: text for name, text in sample.labels.items() if name not in self.fixed}
                    yield {**own, "value": sample.value}

    def clear(self) -> None:
        """Remove the series with the fixed labels."""
        if self.fixed:
            self.family.remove_by_labels(dict(self.fixed))
        else:
            self.family.clear()


@dataclass(frozen=True, slots=True)
class Instruments:
    """Makes series that have the `fixed` labels: none for the server, the model's name, or that and the
    engine's.

    The plural methods return the series of one more label by its values, so that a step looks nothing up."""

    families: Families
    fixed: Mapping[str, str]

    def gauge(self, name: str, help_: str) -> Gauge:
        return self._only(self._gauges(name, help_))

    def gauges(self, name: str, help_: str, **label: Collection[str]) -> dict[str, Gauge]:
        return self._each(self._gauges(name, help_, *label), *label.values())

    def open_gauge(self, name: str, help_: str, *labels: str) -> OpenFamily[Gauge]:
        return OpenFamily(self._gauges(name, help_, *labels), self.fixed)

    def counter(self, name: str, help_: str) -> Counter:
        return self._only(self._counters(name, help_))

    def counters(self, name: str, help_: str, **label: Collection[str]) -> dict[str, Counter]:
        return self._each(self._counters(name, help_, *label), *label.values())

    def open_counter(self, name: str, help_: str, *labels: str) -> OpenFamily[Counter]:
        return OpenFamily(self._counters(name, help_, *labels), self.fixed)

    def histogram(self, name: str, help_: str, buckets: Sequence[float]) -> Histogram:
        return self._only(self._histograms(name, help_, buckets))

    def histograms(
        self, name: str, help_: str, buckets: Sequence[float], **label: Collection[str]
    ) -> dict[str, Histogram]:
        return self._each(self._histograms(name, help_, buckets, *label), *label.values())

    def _gauges(self, name: str, help_: str, *labels: str) -> Gauge:
        return self.families.shared(name, Gauge(name, help_, (*self.fixed, *labels), registry=None))

    def _counters(self, name: str, help_: str, *labels: str) -> Counter:
        return self.families.shared(name, Counter(name, help_, (*self.fixed, *labels), registry=None))

    def _histograms(self, name: str, help_: str, buckets: Sequence[float], *labels: str) -> Histogram:
        made = Histogram(name, help_, (*self.fixed, *labels), buckets=buckets, registry=None)
        return self.families.shared(name, made)

    def _only(self, family: _Family) -> _Family:
        """Return the one series; a family without labels is itself one."""
        return family.labels(*self.fixed.values()) if self.fixed else family

    def _each(self, family: _Family, values: Collection[str]) -> dict[str, _Family]:
        return {value: family.labels(*self.fixed.values(), value) for value in values}


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
