"""At a glance: do agents wait, and why."""

from __future__ import annotations

from grafana.dashboard import Dashboard
from grafana.panel import RANGE, Panel, Query, figure, rate, stacked, total

OVERVIEW = Dashboard(
    "overview",
    "Overview",
    "Do agents wait, why, and what is there to do.",
    (
        figure(
            "Engines up",
            "Fewer than were started: one loads or restarts, and the others have its work. See "
            "Engine and memory.",
            "short",
            total("penstock_engine_up", "up"),
        ),
        figure(
            "Waiting",
            "Grows for minutes: more is asked than the engines can do. See Scheduler and fairness for "
            "whose it is.",
            "short",
            total("penstock_queued_requests", "waiting"),
            warn=32,
            bad=256,
        ),
        figure(
            "Oldest waiting",
            "Beyond a minute agents are likely to give up and ask again, which makes it worse.",
            "s",
            Query("max(penstock_oldest_queued_seconds{@})", "oldest"),
            warn=10,
            bad=60,
        ),
        figure(
            "First token, p95",
            "Five-minute p95. Bad while nothing waits: prompts are long and cold. Bad while much "
            "waits: the queue.",
            "s",
            Query("max(instance:penstock_ttft_seconds:p95_5m{@})", "p95"),
            warn=5,
            bad=10,
        ),
        figure(
            "Prefix cache hits",
            "Share of prompt tokens not computed. Agents' turns give 0.9 and more; low means "
            "evictions or salts.",
            "percentunit",
            Query(
                "sum(rate(penstock_prefix_hit_tokens_total{@}[5m]))"
                " / sum(rate(penstock_prefix_query_tokens_total{@}[5m]))",
                "hits",
            ),
        ),
        figure(
            "Stalled",
            "Seconds of silence of an engine that has work. More than a step takes: it hangs.",
            "s",
            Query("max(penstock_stalled_seconds{@})", "stalled"),
            warn=10,
            bad=60,
        ),
        stacked(
            "Requests by outcome",
            "error: engine deaths and answers that failed. rejected: bounds were reached. deadline: "
            "too slow for clients.",
            "reqps",
            rate,
            "penstock_requests_total",
            by="outcome",
        ),
        Panel(
            "Tokens per second",
            "Generated falls while prefilled rises: long cold prompts take the steps. Both low with a "
            "queue: look at step time.",
            "short",
            [
                Query("sum(instance_engine:penstock_generated_tokens:rate1m{@})", "generated"),
                rate("penstock_prefilled_tokens_total", "prefilled"),
                rate("penstock_prefix_hit_tokens_total", "cached, memory and disk"),
                rate("penstock_re_prefilled_tokens_total", "prefilled again"),
            ],
        ),
        Panel(
            "Slots",
            "Running at the number of slots with a queue behind: full. Fewer with a queue: memory or "
            "a dead engine. Of all engines together.",
            "short",
            [
                total("penstock_slots", "slots"),
                total("penstock_running_slots", "running"),
                total("penstock_engine_waiting_requests", "in an engine without a slot"),
                total("penstock_queued_requests", "queued"),
            ],
        ),
        Panel(
            "First token: cold, warm and resumed, p95",
            "Warm is as slow as cold: the wait is the queue's, not the prompt's. resumed: an engine died "
            "before the first token; its length is that of a restart.",
            "s",
            [
                Query(
                    f"histogram_quantile(0.95, sum by (le, start) "
                    f"(rate(penstock_time_to_first_token_seconds_bucket{{@}}[{RANGE}])))",
                    "{{start}}",
                )
            ],
        ),
        stacked(
            "HTTP answers by status",
            "401: keys. 429 and 503: bounds, draining or no engine. 499: clients left before the "
            "answer began. 5xx else: ours.",
            "reqps",
            rate,
            "penstock_http_requests_total",
            by="status",
        ),
        Panel(
            "HTTP answers by route",
            "Which dialects are used, and who polls. Fields ignored: the header x-penstock-ignored and the "
            "log name them.",
            "reqps",
            [
                rate("penstock_http_requests_total", "{{method}} {{route}}", by="method, route"),
                rate("penstock_bodies_with_ignored_fields_total", "fields ignored: {{route}}", by="route"),
            ],
        ),
        Panel(
            "Connections",
            "Level at --max-connections: the next ones get 503. Failures to accept: the process has no "
            "file descriptors left.",
            "short",
            [
                total("penstock_http_connections", "open"),
                rate("penstock_http_accept_failures_total", "failures to accept per second"),
            ],
        ),
        stacked(
            "Refused by the HTTP server",
            "Ended before they reached a route: too many connections, slow or malformed requests, clients "
            "that do not read.",
            "reqps",
            rate,
            "penstock_http_refusals_total",
            by="reason",
        ),
    ),
)
