"""The board that shows what is not computed again, and what is evicted too early."""

from __future__ import annotations

from grafana.dashboard import Dashboard
from grafana.panel import BY_ENGINE, ENGINE_LEGEND, RANGE, Panel, Query, each, rate, share, total

CACHE = Dashboard(
    "cache",
    "Prefix cache",
    "What is not computed again, and what is thrown away too early.",
    (
        Panel(
            "Hit share",
            "Tokens found of tokens looked up. Falls while stored rises: prompts begin differently "
            "each time.",
            "percentunit",
            [share("penstock_prefix_hit_tokens_total", "penstock_prefix_query_tokens_total", "hits")],
        ),
        Panel(
            "Hit share by engine",
            "One below the others: it was restarted, or its sessions are more than its memory holds.",
            "percentunit",
            [
                Query(
                    f"sum by ({BY_ENGINE}) (rate(penstock_prefix_hit_tokens_total{{@}}[{RANGE}]))"
                    f" / sum by ({BY_ENGINE}) (rate(penstock_prefix_query_tokens_total{{@}}[{RANGE}]))",
                    ENGINE_LEGEND,
                )
            ],
        ),
        Panel(
            "Where prompt tokens come from",
            "computed above cached in an agent farm: evictions, salts, or volatile system prompts.",
            "short",
            [
                rate("penstock_prefilled_tokens_total", "computed"),
                rate("penstock_prefix_hit_tokens_total", "cached, memory and disk"),
                rate("penstock_prefix_disk_hit_tokens_total", "of them from disk"),
                rate("penstock_prompt_tokens_total", "asked"),
            ],
        ),
        Panel(
            "Token ids of prompts",
            "made is what is new in each turn. made near kept in an agent farm: templates that change old "
            "turns, or pieces that are forgotten before their next turn.",
            "short",
            [rate("penstock_tokenized_tokens_total", "{{ids}}", by="ids")],
        ),
        Panel(
            "Bytes of token ids",
            "In the server's own process, at most 64 MiB a model.",
            "bytes",
            [total("penstock_prompt_pieces_bytes", "kept pieces of prompts")],
        ),
        Panel(
            "Let go",
            "budget above stored for long: thrash, every prefix leaves before it comes back. "
            "superseded is healthy.",
            "short",
            [
                rate("penstock_prefix_evicted_tokens_total", "{{reason}}", by="reason"),
                rate("penstock_prefix_stored_tokens_total", "stored"),
            ],
        ),
        Panel(
            "Bytes held",
            "At the budget is healthy: memory that holds nothing serves nobody.",
            "bytes",
            [
                total("penstock_prefix_bytes", "kept prefixes"),
                total("penstock_kv_bytes", "running rows"),
                total("penstock_kv_budget_bytes", "budget"),
            ],
        ),
        Panel(
            "Tokens held",
            "Of kept prefixes. Falls while bytes stay: states of long prompts take the room.",
            "short",
            [total("penstock_prefix_tokens", "tokens")],
        ),
        Panel(
            "Shared by running rows",
            "Share of running rows' tokens that lie in the cache once for all. 0 with agents of one system "
            "prompt: it differs near its beginning, or the model's layers cannot share in place.",
            "percentunit",
            [Query("sum (penstock_shared_row_tokens{@}) / sum (penstock_row_tokens{@})", "shared")],
        ),
        Panel(
            "Disk tier: files",
            "dropped beside writes: the disk is slower than prefixes come.",
            "iops",
            [
                rate("penstock_prefix_disk_reads_total", "reads"),
                rate("penstock_prefix_disk_writes_total", "writes"),
                rate("penstock_prefix_disk_dropped_writes_total", "dropped"),
                rate("penstock_prefix_disk_errors_total", "errors"),
            ],
        ),
        Panel(
            "Disk tier: bytes",
            "Against --kv-disk-bytes; the longest unused files go first.",
            "bytes",
            [each("penstock_prefix_disk_bytes")],
        ),
        Panel(
            "Self-check complaints",
            "Anything but 0 is a fault of ours: please report it with the log.",
            "short",
            [
                Query(
                    f"sum (increase(penstock_prefix_integrity_complaints_total{{@}}[{RANGE}]))", "complaints"
                )
            ],
            bad=1,
        ),
    ),
)
