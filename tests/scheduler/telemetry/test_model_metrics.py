"""The series of each model: its own, from zero, and none that one model alone would not have."""

from __future__ import annotations

from scheduler.telemetry.metrics import Metrics


def labelled(metrics: Metrics, **labels: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The series that have these labels, by name and the other labels."""
    return {
        (one.name, tuple(sorted(one.labels.items() - labels.items()))): one.value
        for family in metrics.registry.collect()
        for one in family.samples
        if labels.items() <= one.labels.items()
    }


def test_every_series_but_the_servers_names_its_model() -> None:
    """A query for one model finds all of it; HTTP, the build and telemetry itself belong to none."""
    metrics = Metrics()
    servers = {family.name for family in metrics.registry.collect()}
    metrics.of_model("tiny").of_engine("0")
    for family in metrics.registry.collect():
        for one in family.samples:
            assert ("model" in one.labels) == (family.name not in servers), one
    assert servers >= {"penstock_http_connections", "penstock_telemetry_failures", "penstock_build_info"}


def test_a_second_model_adds_as_many_series_as_the_first_and_the_server_none() -> None:
    """Two models cost twice the series of one; one costs what it did without the label."""
    metrics = Metrics(["acme"])
    of_server = len(labelled(metrics))
    metrics.of_model("tiny").of_engine("0")
    of_one = len(labelled(metrics)) - of_server
    metrics.of_model("large").of_engine("0")
    assert len(labelled(metrics)) == of_server + 2 * of_one
    assert labelled(metrics, model="tiny").keys() == labelled(metrics, model="large").keys()
