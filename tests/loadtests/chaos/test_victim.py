"""The victim's own counts, over all its engines and models."""

from __future__ import annotations

from loadtests.chaos.victim import over_engines

EXPOSITION = """\
# HELP penstock_engine_up 1 while the engine can take requests.
# TYPE penstock_engine_up gauge
penstock_engine_up{engine="0",model="tiny"} 1.0
penstock_engine_up{engine="11",model="tiny"} 0.0
penstock_engine_restarts_total{cause="killed",engine="0"} 2.0
penstock_engine_restarts_total{cause="killed",engine="11"} 3.0
penstock_engine_restarts_total{cause="hung",engine="0"} 1.0
penstock_engine_step_seconds_count{engine="0",kind="decode",model="tiny"} 4.0
penstock_engine_step_seconds_count{engine="0",kind="decode",model="large"} 1.0
penstock_kv_cache_share{engine="0"} 1.0
penstock_kv_cache_share{engine="11"} 0.5
penstock_engines{condition="ready"} 1.0
penstock_queued_requests{model="tiny"} 7.0
"""


def test_engines_are_summed_and_other_labels_kept() -> None:
    """Wherever the label stands among the others."""
    assert over_engines(EXPOSITION) == {
        "penstock_engine_up": 1.0,
        'penstock_engine_restarts_total{cause="killed"}': 5.0,
        'penstock_engine_restarts_total{cause="hung"}': 1.0,
        'penstock_engine_step_seconds_count{kind="decode"}': 5.0,
        "penstock_kv_cache_share": 1.5,
        'penstock_engines{condition="ready"}': 1.0,
        "penstock_queued_requests": 7.0,
    }


def test_a_share_is_the_least_of_any_engine() -> None:
    """A sum of shares says nothing."""
    assert over_engines(EXPOSITION, min)["penstock_kv_cache_share"] == 0.5
