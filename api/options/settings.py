"""Every option of `penstock serve` except those of a model (`model_settings.py`): one frozen, checked record,
and the only place that names them.

The command line, the environment (`--max-slots`, `PENSTOCK_MAX_SLOTS`) and the table in `api/OPTIONS.md` are
made from these fields, so that they always agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, SecretStr

from api.access.api_keys import ApiKeys, load_keys
from api.options.model_settings import ModelSettings, option
from api.options.option_values import (
    Bytes,
    MemoryAmount,
    engine_count,
    host_names,
    listening_addresses,
    readable_by,
    scripted_plan,
)
from scheduler.shared.messages import ScriptedPlan


class ServeSettings(ModelSettings):
    """Checked when made; frozen afterwards."""

    host: str = option("HTTP", "Address to listen on.", "127.0.0.1", min_length=1)
    port: int = option("HTTP", "Port to listen on; 0 takes a free one.", 8000, ge=0, le=65535)
    max_body_bytes: Bytes = option("HTTP", "Longest request body; longer ones get 413.", 16 << 20, ge=1024)
    drain_seconds: float = option(
        "HTTP", "After SIGTERM or Ctrl-C, time for running requests to finish.", 30.0, ge=0, le=3600
    )

    cors_origins: str | None = option(
        "HTTP",
        "Other sites' web pages that may use the API from a browser, as origins with commas;"
        " chrome-extension://* allows a scheme, * all. Pages of other origins get 403, but for applications'"
        " (app://, tauri://, vscode-webview:// and their like), which no web site can have.",
        None,
    )
    allowed_hosts: Annotated[str | None, readable_by(host_names)] = option(
        "HTTP",
        "Names by which clients reach the server, with commas, beside --host and (on loopback) localhost;"
        " other Host headers get 403. * is every name. If not given: only a loopback address checks, and also"
        " answers to the machine's own name, *.local and *.internal.",
        None,
    )
    max_stored_bytes: Bytes = option(
        "HTTP",
        "Total size of the stored responses, each counted with its conversation.",
        256 << 20,
        ge=0,
    )
    api_key: SecretStr | None = option(
        "Keys",
        "Keys that clients must send, with commas: key, tenant:key or 'tenant:key admin'."
        " Prefer the environment: other users of the machine can read the command line.",
        None,
    )
    api_keys_file: Path | None = option(
        "Keys", "File of API keys, one a line: 'tenant:key', and 'tenant:key admin' for operators.", None
    )

    engines: Annotated[int | str, BeforeValidator(engine_count)] = option(
        "Scheduling",
        "Engine processes behind the one queue: one for each GPU, or parts of the cores of a CPU. join: one"
        " on each machine that runs `penstock engine --join`.",
        1,
    )
    max_slots: int = option(
        "Scheduling",
        "Most sequences that run in one batch.",
        32,
        ge=1,
        le=4096,
    )
    max_queue: int = option("Scheduling", "Waiting requests; further ones get 503.", 1024, ge=1)
    max_queue_per_tenant: int = option(
        "Scheduling", "Waiting requests of one tenant; further ones get 429. 0: no bound.", 0, ge=0
    )
    tenant_header: str | None = option(
        "Scheduling",
        "Header that names the tenant, where a proxy in front sets it; with authorization, each API key is a"
        " tenant. If not given, all requests belong to one tenant.",
        None,
        pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$",
    )
    queue_seconds: float = option(
        "Scheduling", "Queue timeout: a request that waited longer gets 503. 0: no limit.", 0.0, ge=0, le=1e6
    )
    max_running_seconds: float = option(
        "Scheduling", "Longest time from a request's first step to its end. 0: no limit.", 0.0, ge=0, le=1e6
    )
    prefill_chunk_tokens: int = option(
        "Scheduling",
        "Most prompt tokens computed in one step; fewer while sequences decode (--itl-target-ms).",
        1024,
        ge=16,
        le=65536,
    )
    itl_target_ms: float = option(
        "Scheduling",
        "ITL target: longest gap between tokens that prefills of other requests may cause;"
        " 0: 3.5 times the usual gap.",
        0.0,
        ge=0,
        le=60_000,
    )

    kv_cache_bytes: Bytes = option(
        "Prefix cache",
        "KV cache of an engine's running sequences and kept prefixes together, as 8GiB or a number; 0 keeps"
        " no prefixes, auto depends on the device's memory.",
        -1,
        ge=-1,
    )

    memory_limit: MemoryAmount = option(
        "Prefix cache",
        "All that the engine may use, weights included: bytes (24GiB) or a share of the device's memory"
        " (0.7); auto: 0.95 of what a GPU recommends, half of the machine's without one. Several engines on"
        " one device have equal parts of it.",
        0.0,
        ge=0,
    )

    cache_sharing: Literal["auto", "all", "tenant"] = option(
        "Prefix cache",
        "Prefix cache isolation: all requests share prefixes, or only those of one tenant. auto: tenant where"
        " API keys name two tenants or --tenant-header is given.",
        "auto",
    )
    kv_disk: Path | None = option(
        "Prefix cache", "Folder that keeps prefixes across restarts; none if not given.", None
    )
    kv_disk_bytes: Bytes = option(
        "Prefix cache", "Most bytes in that folder, of all engines together.", 32 << 30, ge=1 << 20
    )

    engine_address: Annotated[str | None, readable_by(listening_addresses)] = option(
        "Cluster",
        "Addresses of this machine to listen on for engines (--engines join), with commas, as other machines"
        " reach them: HOST, HOST:PORT or :PORT, which is all of them. If not given: all, on a free port.",
        None,
    )

    engine: Literal["mlx", "scripted"] = option(
        "Engine", "mlx, or scripted: tokens by arithmetic, for tests without a model.", "mlx"
    )
    speculation: Literal["auto", "none"] = option(
        "Engine",
        "auto: a step verifies several tokens of a sequence, drafted from its own text or its grammar, where"
        " that is expected to save time; the tokens are the same. none: one token a step.",
        "auto",
    )
    scripted: Annotated[ScriptedPlan, BeforeValidator(scripted_plan)] = option(
        "Engine",
        f"The scripted engine's behaviour as key=value,...: {', '.join(ScriptedPlan.__struct_fields__)}.",
        ScriptedPlan(),
    )
    ready_seconds: float = option(
        "Engine", "Startup timeout: an engine that is not ready by then is restarted.", 600.0, gt=0
    )
    stall_seconds: float = option(
        "Engine",
        "Stall timeout: an engine that has work and finishes no step for this long is killed and replaced;"
        " sooner, from 30 s on, where its steps are known to be short, or other engines can go on.",
        120.0,
        gt=0,
    )

    metrics_tenants: str | None = option(
        "Metrics", "Tenants that /metrics names, with commas; all others together are 'other'.", None
    )

    log_format: Literal["console", "json"] = option(
        "Logs", "console for a person, json for a collector.", "console"
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("Logs", "Lowest level logged.", "info")

    def keys(self) -> ApiKeys:
        """Return the API keys. Raise OptionError if they are invalid."""
        given = None if self.api_key is None else self.api_key.get_secret_value()
        return load_keys(given, self.api_keys_file)

    @property
    def local_engines(self) -> int:
        """Return the number of engines on this machine, or 1 if other machines have the engines."""
        return 1 if isinstance(self.engines, str) else self.engines

    @property
    def engines_join(self) -> bool:
        """Return whether other machines have the engines."""
        return isinstance(self.engines, str)
