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
            "0: loading or restarting. If it alternates: a crash loop.",
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
            "out_of_memory: lower --kv-cache-bytes or --max-slots. buffer_limit: Metal allows a number "
            "of buffers, whatever their size. gpu_timeout: chunks halve by themselves. hung: it made no "
            "steps and was killed. killed: from outside, or by the kernel. start: it did not come up. "
            "engine_died in the log has its last words.",
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
            "If stalled rises in a straight line, the engine is hung. Age of the last step alone only means "
            "idle.",
            "s",
            [
                most("penstock_stalled_seconds", "stalled {{instance}}"),
                most("penstock_last_step_age_seconds", "last step {{instance}}"),
            ],
            bad=60,
        ),
        Panel(
            "Step duration",
            "Rises with rows and contexts. Jumps: memory pressure, another program on the GPU. mixed far "
            "above decode: prefill holds up the answers; lower --itl-target-ms.",
            "s",
            [
                Query(
                    f"histogram_quantile({share_}, sum by (kind, le) "
                    f"(rate(penstock_engine_step_seconds_bucket{{@}}[{RANGE}])))",
                    f"{{{{kind}}}} p{share_ * 100:g}",
                )
                for share_ in (0.5, 0.95)
            ],
        ),
        Panel(
            "Share of time inside steps",
            "1 is a busy engine. Below with a queue: the parent process is too slow to feed it.",
            "percentunit",
            [
                Query(
                    f"sum by (instance) (rate(penstock_engine_step_seconds_sum{{@}}[{RANGE}]))",
                    "{{instance}}",
                )
            ],
        ),
        Panel(
            "Engine overhead",
            "Share of its time with work that is not the model's: bookkeeping inside a step, and between "
            "steps. Above 0.2: the CPU is too busy, or a fault of ours. On a GPU an upper bound.",
            "percentunit",
            [
                Query(
                    f'sum by (part) (rate(penstock_engine_seconds_total{{@,part!="model"}}[{RANGE}]))'
                    f" / on () group_left sum (rate(penstock_engine_seconds_total{{@}}[{RANGE}]))",
                    "{{part}}",
                )
            ],
            bad=0.2,
        ),
        Panel(
            "Rows decoding in a step",
            "Near the slots under load. Low with a queue: prefill or memory holds rows back.",
            "short",
            quantiles("penstock_engine_step_decode_rows", 0.5, 0.95),
        ),
        Panel(
            "Prompt tokens in a step",
            "The mean, and the largest steps. Small chunks with a long queue: decoding rows leave no time. "
            "A lower ceiling: the device timed out.",
            "short",
            [
                share(
                    "penstock_engine_step_prefill_tokens_sum",
                    "penstock_engine_step_prefill_tokens_count",
                    "mean",
                ),
                *quantiles("penstock_engine_step_prefill_tokens", 0.95),
                Query(
                    "min by (instance) (penstock_prefill_chunk_ceiling_tokens{@})", "{{instance}}: ceiling"
                ),
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
            "Device memory",
            "active near recommended: Metal will kill the engine for it; lower --kv-cache-bytes. peak says "
            "how near it has been. cached is MLX's to give back. 0 is recommended by a CPU.",
            "bytes",
            [
                most("penstock_device_active_bytes", "active {{instance}}"),
                most("penstock_device_cached_bytes", "cached {{instance}}"),
                most("penstock_device_peak_bytes", "peak {{instance}}"),
                most("penstock_device_recommended_bytes", "recommended {{instance}}"),
            ],
        ),
        Panel(
            "Memory guard",
            "What the engine gives up while memory is short: 1 cached prefixes, 2 large chunks, 3 admission, "
            "4 running rows. Above 2 for long: another program takes the memory, or --memory-limit is low.",
            "short",
            [
                most("penstock_memory_relief", "relief {{instance}}"),
                rate("penstock_memory_relief_changes_total", "changes {{direction}}", "direction"),
            ],
            bad=3,
        ),
        Panel(
            "Memory that is left",
            "used and limit are the engine's; available is what the machine or its container can still give "
            "(-1: unknown). Below chunk_peak, which the next prefill chunk needs, the guard gives up memory.",
            "bytes",
            [
                Query("max by (instance, part) (penstock_memory_guard_bytes{@})", "{{instance}}: {{part}}"),
            ],
        ),
        Panel(
            "Memory by use",
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
            "Preempted",
            "Requests that were preempted and wait to resume. Above 0 for long: too many "
            "slots for the memory.",
            "short",
            [most("penstock_preempted_requests", "{{instance}}")],
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
