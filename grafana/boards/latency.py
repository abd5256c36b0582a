"""The board that shows where the time of a request goes."""

from __future__ import annotations

from grafana.dashboard import Dashboard
from grafana.panel import BY_MODEL, MODEL_LEGEND, Panel, most, quantile, quantiles, rate

LATENCY = Dashboard(
    "latency",
    "Latency",
    "Where the time of a request goes. Hover a dot for the id of a request: exemplars.",
    (
        Panel(
            "Time to first token",
            "From arrival. The SLO is 10 s for 95 of 100.",
            "s",
            quantiles("penstock_time_to_first_token_seconds"),
            bad=10,
        ),
        Panel(
            "First token by model, p95",
            "One alone is late: its queue, its prompts, or its load, for which the first requests wait.",
            "s",
            [quantile("penstock_time_to_first_token_seconds", 0.95, MODEL_LEGEND, by=BY_MODEL)],
            bad=10,
        ),
        Panel(
            "Gap between tokens by model, p95",
            "All rise together: they share a device. One alone: its rows or its contexts.",
            "s",
            [quantile("penstock_inter_token_seconds", 0.95, MODEL_LEGEND, by=BY_MODEL)],
        ),
        Panel(
            "Gap between tokens",
            "p99 far above p50: prompts of others take long steps; lower --itl-target-ms.",
            "s",
            quantiles("penstock_inter_token_seconds"),
        ),
        Panel(
            "Time per output token",
            "A request's mean gap. Rises with rows in the batch and with their contexts.",
            "s",
            quantiles("penstock_time_per_output_token_seconds"),
        ),
        Panel(
            "Whole request",
            "Of finished requests only. Without the others it says little: it follows max_tokens.",
            "s",
            quantiles("penstock_request_seconds"),
        ),
        Panel(
            "Queue time",
            "Tokenizing and queueing. Most of TTFT: too few slots, or too much asked.",
            "s",
            quantiles("penstock_queue_seconds"),
        ),
        Panel(
            "Prefill time",
            "From the engine to the first token. Most of TTFT: long prompts, a cold cache.",
            "s",
            quantiles("penstock_prefill_seconds"),
        ),
        Panel("Decode time", "From the first token to the last.", "s", quantiles("penstock_decode_seconds")),
        Panel(
            "Cancel to release",
            "Beyond two steps: slots are held for clients that have left.",
            "s",
            quantiles("penstock_cancel_seconds", 0.5, 0.95),
            bad=5,
        ),
        Panel(
            "Prompt length",
            "Grows day by day: conversations are not compacted.",
            "short",
            quantiles("penstock_request_prompt_tokens", 0.5, 0.95),
        ),
        Panel(
            "Answer length",
            "p95 at the limit: answers are cut off (outcome length).",
            "short",
            quantiles("penstock_request_output_tokens", 0.5, 0.95),
        ),
        Panel(
            "First tokens later than 10 s",
            "The share that breaks the SLO; its budget is 0.05.",
            "percentunit",
            [
                most(
                    f"instance_model:penstock_ttft_slow:ratio_rate{span}", f"{span} {MODEL_LEGEND}", BY_MODEL
                )
                for span in ("5m", "1h")
            ],
            bad=0.05,
        ),
        Panel(
            "Tokens after a cancel",
            "Dropped. Many beside few cancels: the engine hears of cancels late.",
            "short",
            [rate("penstock_late_tokens_total", "late tokens")],
        ),
    ),
)
