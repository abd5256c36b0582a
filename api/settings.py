"""Every option of `penstock serve`: one frozen, checked record, and the only place that names them.

The command line and the environment are made from these fields (`--max-slots`, `PENSTOCK_MAX_SLOTS`),
so an option cannot exist in one and not in the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from api.allowed_hosts import EVERY, host_name
from api.api_keys import ApiKeys, load_keys
from scheduler.answer.answer_format import REASONING_PARSERS
from scheduler.config import (
    EngineConfig,
    FairnessConfig,
    IntakeConfig,
    RecoveryConfig,
    SchedulerConfig,
    SupervisionConfig,
)
from scheduler.errors import OptionError
from scheduler.link.messages import ScriptedPlan

ENVIRONMENT_PREFIX = "PENSTOCK_"


def _option(group: str, help_: str, default: Any, **bounds: Any) -> Any:
    return Field(default=default, description=help_, json_schema_extra={"group": group}, **bounds)


def _scripted_plan(text: Any) -> Any:
    """`key=value,key=value` to a ScriptedPlan."""
    if not isinstance(text, str):
        return text
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    known = ScriptedPlan.__struct_fields__
    for key, equals, _ in pairs:
        if key not in known or not equals:
            raise ValueError(f"{key!r} is none of {', '.join(known)}")
    try:
        values = {key: msgspec.json.decode(value.encode()) for key, _, value in pairs}
        # Through msgspec, so that each value's type is checked against the plan's.
        healthy = ScriptedPlan()
        return msgspec.convert([values.get(name, getattr(healthy, name)) for name in known], ScriptedPlan)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{letter}i": 1 << shift for letter, shift in (("k", 10), ("m", 20), ("g", 30), ("t", 40))
}


def _byte_count(text: Any) -> Any:
    """`8GiB`, `500MB`, `1024` or `auto` (-1) to bytes."""
    if not isinstance(text, str):
        return text
    if text.strip().lower() == "auto":
        return -1
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError("bytes are given as 8GiB, 500MB, a number, or auto")
    return int(float(match[1]) * _UNITS[match[2]])


def _host_names(text: Any) -> Any:
    for name in _between_commas(text if isinstance(text, str) else None):
        if name != EVERY and host_name(name) is None:
            raise ValueError(f"{name!r} is no host name")
    return text


def _model_names(text: Any) -> Any:
    if isinstance(text, str) and not _between_commas(text):
        raise ValueError("there is no name in it")
    return text


class ServeSettings(BaseModel):
    """Checked when made; frozen afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    model: str | None = _option(
        "Model", "Folder or Hugging Face hub id of the model; the embedded model if not given.", None
    )
    served_model_name: Annotated[str | None, BeforeValidator(_model_names)] = _option(
        "Model", "Name that requests give, or several with commas; the model's own name if not given.", None
    )
    weights_dtype: Literal["auto", "stored", "float32", "bfloat16", "float16"] = _option(
        "Model", "Type of the weights in memory; auto: float32 on a CPU, as stored on a GPU.", "auto"
    )

    tool_parser: str = _option(
        "Model",
        "How the model writes tool calls: a parser of mlx-lm (json_tools, ...), dsml, harmony or none;"
        " auto: as its chat template shows.",
        "auto",
    )
    reasoning_parser: str = _option(
        "Model", f"How the model writes reasoning: {', '.join(REASONING_PARSERS)}.", "auto"
    )

    host: str = _option("HTTP", "Address to listen on.", "127.0.0.1", min_length=1)
    port: int = _option("HTTP", "Port to listen on; 0 takes a free one.", 8000, ge=0, le=65535)
    max_connections: int = _option("HTTP", "Open connections; more are answered 503.", 1024, ge=1)
    max_body_bytes: int = _option("HTTP", "Longest request body; longer ones get 413.", 16 << 20, ge=1024)
    write_seconds: float = _option(
        "HTTP", "A client that takes nothing for so long is cut off.", 20.0, gt=0, le=3600
    )
    comment_seconds: float = _option(
        "HTTP", "Longest silence of a stream before a comment keeps it alive.", 5.0, gt=0, le=3600
    )
    drain_seconds: float = _option(
        "HTTP", "After SIGTERM or Ctrl-C, running answers may go on for so long.", 30.0, ge=0, le=3600
    )

    cors_origins: str | None = _option(
        "HTTP", "Web pages that may ask from a browser, as origins with commas; * is all of them.", None
    )
    allowed_hosts: Annotated[str | None, BeforeValidator(_host_names)] = _option(
        "HTTP",
        "Names by which clients reach the server, with commas, beside --host and (on loopback) localhost;"
        " other Host headers get 403. * is every name. If not given: only a loopback address checks.",
        None,
    )
    max_stored_responses: int = _option(
        "HTTP", "/v1/responses remembers so many; 0: none. The longest unused go first.", 1024, ge=0
    )
    max_stored_bytes: int = _option(
        "HTTP", "They hold so many bytes together, each counted with its conversation.", 256 << 20, ge=0
    )

    api_key: SecretStr | None = _option(
        "Keys",
        "Keys that clients must give, with commas: key, tenant:key or 'tenant:key admin'."
        " Better in the environment than in the command line, which others on the machine can read.",
        None,
    )
    api_keys_file: Path | None = _option(
        "Keys", "File with such keys, a line each: 'tenant:key', and 'tenant:key admin' for operators.", None
    )

    max_slots: int = _option("Scheduling", "Requests that decode together.", 32, ge=1, le=4096)
    max_queue: int = _option("Scheduling", "Requests that may wait; more are answered 503.", 1024, ge=1)
    max_queued_tokens: int = _option(
        "Scheduling",
        "Prompt tokens that may wait; more are answered 503. 0: no bound.",
        8_000_000,
        ge=0,
    )
    max_queue_per_tenant: int = _option(
        "Scheduling", "Waiting requests of one tenant; more are answered 429. 0: no bound.", 0, ge=0
    )
    tenant_header: str | None = _option(
        "Scheduling",
        "Header that names the tenant, if something in front of this server sets it; by authorization,"
        " each API key is a tenant. If not given, all are one tenant.",
        None,
        pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$",
    )
    priority_aging_seconds: float = _option(
        "Scheduling", "Waiting for so long moves a priority up by one.", 30.0, gt=0, le=1e6
    )
    queue_seconds: float = _option(
        "Scheduling", "A request that has waited for so long is answered 503. 0: no limit.", 0.0, ge=0, le=1e6
    )
    max_running_seconds: float = _option(
        "Scheduling", "An answer may be generated for so long. 0: no limit.", 0.0, ge=0, le=1e6
    )
    prefill_chunk_tokens: int = _option(
        "Scheduling", "Prompt tokens computed in one step while nobody decodes.", 1024, ge=16, le=65536
    )
    itl_target_ms: float = _option(
        "Scheduling",
        "Longest gap between tokens that others' prompts may cause; 0: 3.5 times the usual gap.",
        0.0,
        ge=0,
        le=60_000,
    )

    kv_cache_bytes: Annotated[int, BeforeValidator(_byte_count)] = _option(
        "Prefix cache",
        "Bytes for kept prefixes and running rows, as 8GiB or a number; 0 keeps none, auto asks the device.",
        -1,
        ge=-1,
    )

    cache_sharing: Literal["auto", "all", "tenant"] = _option(
        "Prefix cache",
        "Whose requests find each other's prefixes: everybody's, or one tenant's. auto: tenant where keys"
        " name two tenants or --tenant-header is given.",
        "auto",
    )
    kv_disk: Path | None = _option(
        "Prefix cache", "Folder in which prefixes outlive a restart; none if not given.", None
    )
    kv_disk_bytes: Annotated[int, BeforeValidator(_byte_count)] = _option(
        "Prefix cache", "Most bytes in that folder.", 32 << 30, ge=1 << 20
    )

    engine: Literal["mlx", "scripted"] = _option(
        "Engine", "mlx, or scripted: tokens by arithmetic, for tests without a model.", "mlx"
    )
    scripted: Annotated[ScriptedPlan, BeforeValidator(_scripted_plan)] = _option(
        "Engine",
        f"The scripted engine's behaviour as key=value,...: {', '.join(ScriptedPlan.__struct_fields__)}.",
        ScriptedPlan(),
    )
    blas: str = _option(
        "Engine", "Matrix library on a Linux CPU: auto (OpenBLAS), off, or the path of a library.", "auto"
    )
    ready_seconds: float = _option(
        "Engine", "An engine that is not ready after so long is started again.", 600.0, gt=0
    )
    stall_seconds: float = _option(
        "Engine", "With work and no step for so long, the engine is killed and replaced.", 120.0, gt=0
    )
    max_request_deaths: int = _option(
        "Engine", "A request that alone may have killed the engine is failed after so many deaths.", 2, ge=1
    )
    max_engine_deaths: int = _option(
        "Engine",
        "So many engine deaths within --death-window-seconds, and nothing is admitted until one settles.",
        8,
        ge=1,
    )
    death_window_seconds: float = _option("Engine", "The window of --max-engine-deaths.", 60.0, gt=0)
    cache: Path | None = _option(
        "Engine", "Folder for what Penstock makes itself; the user's cache folder if not given.", None
    )

    metrics_port: int | None = _option(
        "Metrics",
        "Port of their own for /metrics, /health and /ready, on the same address; /metrics is then not on"
        " the API's port. 0 takes a free one.",
        None,
        ge=0,
        le=65535,
    )
    metrics_tenants: str | None = _option(
        "Metrics", "Tenants that /metrics names, with commas; all others together are 'other'.", None
    )
    metrics_compat: Literal["none", "vllm"] = _option(
        "Metrics", "vllm: /metrics has the core vllm:* series as well, for dashboards and routers.", "none"
    )

    otlp_endpoint: str | None = _option(
        "Traces",
        "Collector that gets a span of each request and its phases, by OTLP over HTTP, as"
        " http://127.0.0.1:4318. Needs pip install 'penstock[otel]'.",
        None,
        pattern=r"^https?://[^\s/]+",
    )

    log_format: Literal["console", "json"] = _option("Logs", "For a person or for a collector.", "console")
    log_level: Literal["debug", "info", "warning", "error"] = _option("Logs", "Least level logged.", "info")

    def keys(self) -> ApiKeys:
        """Raises OptionError."""
        given = None if self.api_key is None else self.api_key.get_secret_value()
        return load_keys(given, self.api_keys_file)

    def origins(self) -> list[str]:
        return _between_commas(self.cors_origins)

    def host_names(self) -> list[str]:
        return _between_commas(self.allowed_hosts)

    def named_tenants(self) -> list[str]:
        return _between_commas(self.metrics_tenants)

    def _cache_sharing(self, keys: ApiKeys) -> Literal["all", "tenant"]:
        """Across tenants `usage.cached_tokens` would tell one of them what another's prompt says."""
        if self.cache_sharing != "auto":
            return self.cache_sharing
        return "tenant" if self.tenant_header or len(keys.tenants) > 1 else "all"

    def scheduler_config(self, model_folder: Path, keys: ApiKeys) -> SchedulerConfig:
        return SchedulerConfig(
            cache_sharing=self._cache_sharing(keys),
            engine=EngineConfig(
                backend=self.engine,
                model_folder=model_folder,
                max_slots=self.max_slots,
                prefill_chunk_tokens=self.prefill_chunk_tokens,
                itl_target_ms=self.itl_target_ms,
                weights_dtype=self.weights_dtype,
                scripted=self.scripted,
                kv_cache_bytes=self.kv_cache_bytes,
                kv_disk=self.kv_disk,
                kv_disk_bytes=self.kv_disk_bytes,
            ),
            supervision=SupervisionConfig(ready_seconds=self.ready_seconds),
            intake=IntakeConfig(
                max_queue=self.max_queue,
                max_queued_tokens=self.max_queued_tokens or None,
                max_queue_per_tenant=self.max_queue_per_tenant or None,
                queue_seconds=self.queue_seconds or None,
                max_running_seconds=self.max_running_seconds or None,
                fairness=FairnessConfig(aging_seconds=self.priority_aging_seconds),
            ),
            stall_seconds=self.stall_seconds,
            recovery=RecoveryConfig(
                max_request_deaths=self.max_request_deaths,
                max_engine_deaths=self.max_engine_deaths,
                death_window_seconds=self.death_window_seconds,
            ),
        )


def _between_commas(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


@dataclass(frozen=True, slots=True)
class Option:
    """One field of ServeSettings as the command line shows it."""

    field: str
    group: str
    help: str
    default: Any
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.field.upper()


def options() -> Iterator[Option]:
    """In the order of the fields."""
    for name, field in ServeSettings.model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        yield Option(name, str(extra["group"]), field.description or "", field.default, choices)


def load(given: Mapping[str, str]) -> ServeSettings:
    """Settings from option values as text, by field name. Raises OptionError naming the option."""
    try:
        return ServeSettings.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        option = Option(str(first["loc"][0]), "", "", None, ())
        reason = first["msg"].removeprefix("Value error, ")
        got = first["input"]
        raise OptionError(f"{option.flag} (or {option.variable}): {reason}, not {got!r}") from error


def refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    """A misspelt PENSTOCK_ variable would be a setting silently ignored. Raises OptionError."""
    known = [option.variable for option in options()]
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise OptionError(f"{name}: there is no such option{hint}")
