"""Every metric of one engine: those that are declared beside the fields of its counters
(`shared/counters.py`), and the others with name, help, labels and buckets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby, product

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from scheduler.shared.counters import Counters
from scheduler.shared.figures import figures_of, over_lives
from scheduler.telemetry import labels as label_values
from scheduler.telemetry.instruments import ENGINE, MODEL, Instruments

STEP_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0),
)
STEP_ROWS = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
STEP_TOKENS = (0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""A step without decoding rows, or without prefill, is a bucket of its own."""


FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
"""The families of declared figures, by their kind."""


class EngineMetrics:
    """The series of one engine, labelled with its model's name and its own. A restart of its process resets
    no counter."""

    def __init__(self, declare: Instruments) -> None:
        self.model, self.engine = declare.fixed[MODEL], declare.fixed[ENGINE]
        self.past, self.now = Counters(), Counters()
        """What its processes counted that have ended, and what the present one has."""
        self._declare_life(declare)
        self._declare_requests(declare)
        self._declare_steps(declare)
        self._declare_memory(declare)

    def _declare_life(self, declare: Instruments) -> None:
        self._model = declare.open_gauge(
            "penstock_model_info",
            "1 once the engine was ready; the model, its device and its fallbacks are in the labels.",
            *label_values.MODEL_FACTS,
        )
        self.up = declare.gauge("penstock_engine_up", "1 while the engine can take requests.")
        self.deaths = declare.counter("penstock_engine_deaths", "Engine processes that ended.")
        self.restarts = declare.counters(
            "penstock_engine_restarts",
            "Engine deaths by cause, from stderr and the exit status.",
            cause=label_values.RESTART_CAUSES,
        )
        self.stalled_seconds = declare.gauge(
            "penstock_stalled_seconds", "Time since the last step while the engine has work; else 0."
        )
        self.last_step_age = declare.gauge(
            "penstock_last_step_age_seconds", "Time since the last step, idle or busy; 0 before the first."
        )

    def _declare_requests(self, declare: Instruments) -> None:
        self.on_board = declare.gauge("penstock_engine_requests", "Requests that the engine holds.")
        self.by_state = declare.gauges(
            "penstock_engine_state_requests",
            "Requests that the engine holds, by state.",
            state=label_values.STATES,
        )
        self.slots = declare.gauge("penstock_slots", "Number of slots.")

    def _declare_steps(self, declare: Instruments) -> None:
        self.step_seconds = declare.histograms(
            "penstock_engine_step_seconds",
            "Duration of steps by kind: decode, mixed or prefill.",
            STEP_SECONDS,
            kind=label_values.STEPS,
        )
        self.draft_tokens = declare.counters(
            "penstock_draft_tokens",
            "Tokens that steps verified beyond one a row, by where they were drafted from.",
            source=label_values.DRAFT_SOURCES,
        )
        self.accepted_draft_tokens = declare.counters(
            "penstock_accepted_draft_tokens",
            "Those of them that are in the answers.",
            source=label_values.DRAFT_SOURCES,
        )
        self.step_rows = declare.histogram(
            "penstock_engine_step_decode_rows", "Rows that got a token in a step.", STEP_ROWS
        )
        self.step_prefill = declare.histogram(
            "penstock_engine_step_prefill_tokens", "Prompt tokens computed in a step.", STEP_TOKENS
        )
        self.chunk_ceiling = declare.gauge(
            "penstock_prefill_chunk_ceiling_tokens", "Most prompt tokens a step; halved by a device timeout."
        )

    def _declare_memory(self, declare: Instruments) -> None:
        self.weights_bytes = declare.gauge("penstock_weights_bytes", "Bytes of the model's weights.")
        self.kv_budget = declare.gauge(
            "penstock_kv_budget_bytes",
            "Bytes that running rows and the prefix cache may hold together; 0 until the engine reports it.",
        )
        self.kv_cache_share = declare.gauge(
            "penstock_kv_cache_share",
            "Share of the KV budget in use; lowered when an engine runs out of memory.",
        )
        self.kv_cache_share.set(1)

    @property
    def totals(self) -> Counters:
        """Return the gauges of the present process, and the counters that have a figure over all of them."""
        return over_lives(self.past, self.now)

    def describe_model(self, labels: Mapping[str, str]) -> None:
        """Set the labels, one for each of MODEL_FACTS, anew: a restarted engine may run on another device."""
        self._model.clear()
        self._model.labels(*(labels[fact] for fact in label_values.MODEL_FACTS)).set(1)


class EngineFigures(Collector):
    """The series that are declared beside the fields of engines' counters, made when somebody looks."""

    def __init__(self, engines: Callable[[], Iterable[EngineMetrics]]) -> None:
        self._engines = engines

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the families without samples."""
        return self._families(())

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        each = [(engine, engine.totals) for engine in self._engines()]
        return self._families(each) if each else iter(())

    def _families(
        self, each: Collection[tuple[EngineMetrics, Counters]]
    ) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for (kind, name, help_), figures in groupby(
            figures_of(Counters).items(), lambda item: (item[0].kind, item[0].name, item[0].help)
        ):
            fields = list(figures)
            labels = (MODEL, ENGINE, *fields[0][0].label[:1])
            family = FAMILIES[kind](name, help_, labels=labels)
            for (engine, totals), (figure, read) in product(each, fields):
                family.add_metric([engine.model, engine.engine, *figure.label[1:]], read(totals))
            yield family
