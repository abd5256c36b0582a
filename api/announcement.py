"""The lines for the operator when an engine can take requests: what runs, where, and a command that
tries it."""

from __future__ import annotations

from importlib.metadata import version

import click

from api.served_models import ServedModels
from scheduler.shared.messages import Ready

TASKS = {
    "embedding": "embedding: /v1/embeddings answers, and nothing else",
    "rerank": "rerank: /v1/rerank answers, and nothing else",
}
"""Tasks by the kind of a model that writes no text."""
_TRIED = {
    "chat": (
        "/v1/chat/completions",
        '{"messages":[{"role":"user","content":"Hello"}],"max_tokens":48,"stream":true}',
    ),
    "embedding": ("/v1/embeddings", '{"input":["Hello"]}'),
    "rerank": ("/v1/rerank", '{"query":"Which is a fruit?","documents":["apple","hammer"]}'),
}
"""Path and body of the command that tries a server, by the kind of its model."""


async def announce(models: ServedModels, url: str, metrics_url: str) -> None:
    """Print the lines for the operator: what runs, where, and a command that tries it. Raise StartupError if
    no model can be loaded."""
    await models.fleet.wait_started()
    for model in models.fleet:
        name = f"{model.name}: " if len(models.fleet) > 1 else ""
        if (ready := model.scheduler.pool.ready) is not None:
            click.echo(f"engine     {name}{_describe(ready)}")
        else:
            later = "loaded next" if model.wanted else "loaded by its first request"
            click.echo(f"engine     {name}{model.reason or later}")
    where = f"models: {url}/v1/models, API: {url}/docs, metrics: {metrics_url}/metrics"
    click.echo(f"listening  {url}   ({where})")
    _, first = next(iter(models))
    path, body = _TRIED[first.kind]
    click.echo(f"try        curl -N {url}{path} -H 'content-type: application/json' -d '{body}'")


def _describe(ready: Ready) -> str:
    if ready.device == "scripted":
        return "scripted"
    return (
        f"mlx {version('mlx')} on {ready.device}: {ready.model_type},"
        f" {ready.weights_bytes / 1e6:.0f} MB of {ready.weights_dtype},"
        f" {ready.kv_bytes_per_token / 1024:g} KiB of cache a token"
        + ("" if ready.kv_cache_dtype == "auto" else f" in {ready.kv_cache_dtype}")
        + (f"; fallbacks: {', '.join(ready.fallbacks)}" if ready.fallbacks else "")
    )
