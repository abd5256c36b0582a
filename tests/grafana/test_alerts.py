"""Each alert fires when it should, and only then, according to promtool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.grafana.expressions import RULES, alerts
from tests.grafana.programs import judged_rules

HISTOGRAM_TTFT = "penstock_time_to_first_token_seconds"


@dataclass(frozen=True, slots=True)
class Case:
    """Series as promtool writes them, a sample a minute: `0+5x90` grows by 5 for 90 minutes. At `minute` the
    alert fires with `bad`, and does not with `good`."""

    bad: dict[str, str]
    good: dict[str, str]
    minute: int = 60
    early: int | None = None
    """Nor with `bad` at this minute: the alert waits before it fires."""


def ttft(slow_of_ten: int) -> dict[str, str]:
    within = 10 - slow_of_ten
    return {
        f'{HISTOGRAM_TTFT}_bucket{{start="cold",le="10.0"}}': f"0+{within}x120",
        f'{HISTOGRAM_TTFT}_bucket{{start="cold",le="+Inf"}}': "0+10x120",
        f'{HISTOGRAM_TTFT}_count{{start="cold"}}': "0+10x120",
    }


def outcomes(**each: int) -> dict[str, str]:
    return {f'penstock_requests_total{{outcome="{name}"}}': f"0+{n}x120" for name, n in each.items()}


def engines(metric: str, *values: str, **labels: str) -> dict[str, str]:
    """One series an engine."""
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return {f'{metric}{{engine="{number}"{more}}}': one for number, one in enumerate(values)}


def unloaded(model: str, engines: str) -> dict[str, str]:
    return {f'penstock_engines{{condition="unloaded",model="{model}"}}': engines}


def cache(evicted: int, stored: int, found: int) -> dict[str, str]:
    """Return the series of two engines, of which the second has no work."""
    return {
        **engines("penstock_prefix_evicted_tokens_total", f"0+{evicted}x120", "0x120", reason="budget"),
        **engines("penstock_prefix_stored_tokens_total", f"0+{stored}x120", "0x120"),
        **engines("penstock_prefix_hit_tokens_total", f"0+{found}x120", "0x120"),
        **engines("penstock_prefix_query_tokens_total", "0+100x120", "0x120"),
    }


def cancels(slow: int) -> dict[str, str]:
    return {
        'penstock_cancel_seconds_bucket{le="5.0"}': f"0+{10 - slow}x120",
        'penstock_cancel_seconds_bucket{le="10.0"}': "0+10x120",
        'penstock_cancel_seconds_bucket{le="+Inf"}': "0+10x120",
    }


CASES = {
    "PenstockDown": Case({'up{job="penstock"}': "1x50 0x60"}, {'up{job="penstock"}': "1x120"}, early=51),
    "PenstockEngineDown": Case(
        engines("penstock_engine_up", "1x50 0x60", "1x30 0x80") | unloaded("tiny", "0x120"),
        engines("penstock_engine_up", "1x50 0x60", "1x120"),
        early=53,
    ),
    "PenstockEngineMissing": Case(
        engines("penstock_engine_up", "1x120", "1x50 0x60"),
        engines("penstock_engine_up", "1x50 0x60", "1x50 0x60"),
        early=53,
    ),
    "PenstockCrashLoop": Case(
        engines("penstock_engine_deaths_total", "0+1x120", "0x120"),
        engines("penstock_engine_deaths_total", "0x40 1x80", "0x50 2x70"),
    ),
    "PenstockEngineHung": Case(
        engines("penstock_stalled_seconds", "0x120", "0x57 60+60x9"),
        engines("penstock_stalled_seconds", "0x120", "0x57 45x9"),
    ),
    "PenstockQueueOld": Case(
        {"penstock_oldest_queued_seconds": "0x50 90x60"},
        {"penstock_oldest_queued_seconds": "30x120"},
        early=53,
    ),
    "PenstockFirstTokenBurn": Case(ttft(5), ttft(1)),
    "PenstockFailing": Case(outcomes(stop=90, error=6, deadline=4), outcomes(stop=97, error=3)),
    "PenstockRejecting": Case(outcomes(stop=70, rejected=30), outcomes(stop=90, rejected=10)),
    "PenstockCacheThrash": Case(cache(95, 100, 5), cache(95, 100, 90)),
    "PenstockMemoryTight": Case(
        engines("penstock_kv_bytes", "5x120", "95x120")
        | engines("penstock_kv_budget_bytes", "100x120", "100x120"),
        engines("penstock_kv_bytes", "95x120", "95x120")
        | engines("penstock_kv_budget_bytes", "200x120", "0x120"),
        early=5,
    ),
    "PenstockDeviceMemoryTight": Case(
        engines("penstock_device_active_bytes", "5x120", "97x120")
        | engines("penstock_device_recommended_bytes", "100x120", "100x120"),
        engines("penstock_device_active_bytes", "97x120", "97x120")
        | engines("penstock_device_recommended_bytes", "200x120", "0x120"),
        early=1,
    ),
    "PenstockMemoryPressed": Case(
        engines("penstock_memory_relief", "0x120", "3x120"),
        engines("penstock_memory_relief", "2x120", "2x120"),
        early=1,
    ),
    "PenstockPreempting": Case(
        engines("penstock_re_prefilled_tokens_total", "0x120", "0+30x120")
        | engines("penstock_prefilled_tokens_total", "0+900x120", "0+100x120"),
        engines("penstock_re_prefilled_tokens_total", "0x120", "0+5x120")
        | engines("penstock_prefilled_tokens_total", "0+900x120", "0+100x120"),
    ),
    "PenstockUnfair": Case(
        {"penstock_service_gap_tokens": "80000x120"}, {"penstock_service_gap_tokens": "80000x55 100x60"}
    ),
    "PenstockCancelSlow": Case(cancels(5), cancels(0)),
    "PenstockDiskTierErrors": Case(
        engines("penstock_prefix_disk_errors_total", "0+1x120", "0x120"),
        engines("penstock_prefix_disk_errors_total", "0x50 1x60", "0x50 1x60"),
    ),
}


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == {alert["alert"] for alert in alerts()}


def fires(name: str, series: dict[str, str], minute: int, folder: Path) -> bool:
    """Return promtool's verdict on one alert over given series, as an exit status."""
    inputs = [{"series": with_instance(one), "values": values} for one, values in series.items()]
    check = {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
    document = {
        "rule_files": [str(path) for path in RULES],
        "evaluation_interval": "30s",
        "tests": [{"interval": "1m", "input_series": inputs, "alert_rule_test": [check]}],
    }
    done = judged_rules(document, folder)
    if done.returncode == 0:
        return False
    assert f"alertname:{name}" in done.stdout.replace(" ", "") + done.stderr.replace(" ", ""), (
        done.stdout + done.stderr
    )
    return "got:" in done.stdout + done.stderr


def with_instance(series: str) -> str:
    """Name the server, and its only model if the series does not say which."""
    name, _, labels = series.partition("{")
    model = "" if name == "up" or "model=" in labels else 'model="tiny",'
    return f'{name}{{instance="mac-1",{model}{labels or "}"}'


@pytest.mark.parametrize("name", CASES)
def test_it_fires_when_it_should_and_keeps_quiet_when_it_should(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert fires(name, case.bad, case.minute, tmp_path)
    assert case.early is None or not fires(name, case.bad, case.early, tmp_path)
    assert not fires(name, case.good, case.minute, tmp_path)


def test_a_model_that_is_not_loaded_is_not_down(tmp_path: Path) -> None:
    """Nor does it hide that another one is."""
    ups = {f'penstock_engine_up{{engine="0",model="{one}"}}': "1x50 0x70" for one in ("tiny", "large")}
    asleep = unloaded("large", "0x50 1x70")
    assert not fires("PenstockEngineDown", ups | asleep | unloaded("tiny", "0x50 1x70"), 60, tmp_path)
    assert fires("PenstockEngineDown", ups | asleep | unloaded("tiny", "0x120"), 60, tmp_path)
    large = {name: values for name, values in ups.items() if "large" in name}
    assert not fires("PenstockEngineDown", large | asleep, 60, tmp_path)


def test_one_model_that_fails_is_not_hidden_by_another(tmp_path: Path) -> None:
    """A twentieth of all requests, and half of the small model's."""
    many = {f'penstock_requests_total{{model="large",outcome="{one}"}}': "0+95x120" for one in ("stop",)}
    few = {f'penstock_requests_total{{model="tiny",outcome="{one}"}}': "0+2x120" for one in ("stop", "error")}
    assert fires("PenstockFailing", many | few, 60, tmp_path)
    assert not fires("PenstockFailing", many, 60, tmp_path)
