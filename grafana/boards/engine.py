"""Is the engine alive, how long are its steps, and does it fit."""

from __future__ import annotations

from grafana.dashboard import Dashboard
from grafana.panel import RANGE, Panel, Query, most, quantiles, rate, share, total

ENGINE = Dashboard(
    "engine",
    "Engine and memory",
    "Is the engine alive, how long are its steps, and does it fit.",
    (
        Panel(
            "What runs",
            "One line an instance; a change of device or type after a restart is worth a look.",
            "short",
            [
                Query(
                    "penstock_model_info{@}", "{{model}} ({{model_type}}, {{weights_dtype}}) on {{device}}"
                ),
                Query("penstock_build_info{@}", "penstock {{version}}, mlx {{mlx}}, python {{python}}"),
            ],
            kind="stat",
            width=24,
        ),
        Panel(
            "Engine up",
            "0: loading or restarting. Back and forth: a restart storm.",
            "short",
            [most("penstock_engine_up", "{{instance}}")],
        ),
        Panel(
            "Engine deaths",
            "Streams go on with the next one. Several in ten minutes: one request may kill it; the log has "
            "the last words.",
            "short",
            [
                Query(
                    "sum by (instance) (increase(penstock_engine_deaths_total{@}[10m]))",
                    "in 10 min, {{instance}}",
                )
            ],
            bad=3,
        ),
        Panel(
            "Restarts by cause",
            "exit, fault: it died; wedge: it stopped making steps and was killed; start: it did not come up.",
            "short",
            [rate("penstock_engine_restarts_total", "{{cause}}", "cause")],
        ),
        Panel(
            "What a death cost",
            "Requests that went on with the next engine, and those that engines die of: look at these.",
            "short",
            [
                rate("penstock_resumed_requests_total", "resumed"),
                rate("penstock_poisonous_requests_total", "poisonous"),
            ],
        ),
        Panel(
            "Time to resume",
            "From an engine's death to the next token of a stream that was on board. Minutes: a slow load.",
            "s",
            quantiles("penstock_resume_seconds", 0.5, 0.95),
        ),
        Panel(
            "Silence",
            "stalled rises in a straight line: wedged. Age of the last step alone is just idleness.",
            "s",
            [
                most("penstock_stalled_seconds", "stalled {{instance}}"),
                most("penstock_last_step_age_seconds", "last step {{instance}}"),
            ],
            bad=60,
        ),
        Panel(
            "Step duration, mean",
            "Rises with rows and contexts. Jumps: memory pressure, another program on the GPU.",
            "s",
            [
                Query(
                    f"sum (rate(penstock_engine_step_seconds_total{{@}}[{RANGE}]))"
                    f" / sum (rate(penstock_engine_steps_total{{@}}[{RANGE}]))",
                    "mean step",
                )
            ],
        ),
        Panel(
            "Share of time inside steps",
            "1 is a busy engine. Below with a queue: the parent process is too slow to feed it.",
            "percentunit",
            [
                Query(
                    f"sum by (instance) (rate(penstock_engine_step_seconds_total{{@}}[{RANGE}]))",
                    "{{instance}}",
                )
            ],
        ),
        Panel(
            "Tokens a step",
            "Decoding rows a step; near the slots under load. Low with a queue: prefill takes the steps.",
            "short",
            [
                share("penstock_generated_tokens_total", "penstock_engine_steps_total", "generated"),
                share("penstock_prefilled_tokens_total", "penstock_engine_steps_total", "prefilled"),
            ],
        ),
        Panel(
            "Running rows of the budget",
            "Above 0.9 rows soon preempt each other. A usable share below 1: an engine ran out of memory.",
            "percentunit",
            [
                Query(
                    "max by (instance) (penstock_kv_bytes{@} / penstock_kv_budget_bytes{@})",
                    "{{instance}}",
                ),
                Query("min by (instance) (penstock_kv_cache_share{@})", "{{instance}}: usable share"),
            ],
            bad=0.9,
        ),
        Panel(
            "Memory",
            "Weights, rows and prefixes together must fit beside everything else on the machine.",
            "bytes",
            [
                total("penstock_weights_bytes", "weights"),
                total("penstock_kv_bytes", "running rows"),
                total("penstock_prefix_bytes", "kept prefixes"),
            ],
            stacked=True,
        ),
        Panel(
            "Work done twice",
            "Prompt tokens computed again after preemptions, of all computed. Above 0.2: thrash.",
            "percentunit",
            [share("penstock_re_prefilled_tokens_total", "penstock_prefilled_tokens_total", "again")],
            bad=0.2,
        ),
    ),
)
