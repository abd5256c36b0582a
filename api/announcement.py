"""The lines for the operator: when an engine can take requests, what runs, where, and what to type
next."""

from __future__ import annotations

import shlex
from importlib.metadata import version

import click

from api.served_models import ServedModels
from scheduler.shared.messages import Ready

TASKS = {
    "embedding": "embedding: /v1/embeddings answers, and nothing else",
    "rerank": "rerank: /v1/rerank answers, and nothing else",
}
"""Tasks by the kind of a model that writes no text."""
_CONTENT = '["choices"][0]["message"]["content"]'
_TRIED = {
    "chat": (
        "/v1/chat/completions",
        '{"messages":[{"role":"user","content":"What is Penstock?"}],"max_tokens":200}',
        f"print(json.load(sys.stdin){_CONTENT})",
    ),
    "embedding": (
        "/v1/embeddings",
        '{"input":["Hello"]}',
        'print(json.load(sys.stdin)["data"][0]["embedding"][:4])',
    ),
    "rerank": (
        "/v1/rerank",
        '{"query":"Which is a fruit?","documents":["apple","hammer"]}',
        '[print(one["relevance_score"], one["document"]["text"]) for one in json.load(sys.stdin)["results"]]',
    ),
}
"""Path and body of the command that tries a server, and the Python that prints the answer's text, by the kind
of its model."""
_DEFAULT_URL = "http://127.0.0.1:8000"


async def announce(models: ServedModels, url: str, metrics_url: str, *, has_keys: bool) -> None:
    """Print the lines for the operator: what runs, where, and commands to type next. Raise StartupError if no
    model can be loaded."""
    await models.fleet.wait_started()
    for model in models.fleet:
        name = f"{model.name}: " if len(models.fleet) > 1 else ""
        if (ready := model.scheduler.pool.ready) is not None:
            click.echo(f"engine     {name}{_describe(ready)}")
        else:
            later = "loaded next" if model.wanted else "loaded by its first request"
            click.echo(f"engine     {name}{model.reason or later}")
    click.echo(f"listening  {url}   (for OpenAI's clients: {url}/v1)")
    click.echo(f"page       {url}/   (API: {url}/docs, metrics: {metrics_url}/metrics)")
    _, first = next(iter(models))
    if first.kind == "chat":
        at = "" if url == _DEFAULT_URL else f" --url {url}"
        click.echo(f"chat       penstock chat{at}   (agents: penstock launch{at} claude, codex, ...)")
    click.echo(f"try        {tried(first.kind, url, has_keys=has_keys)}")


def tried(kind: str, url: str, *, has_keys: bool) -> str:
    """Return a command for a shell that asks the server something, and prints text."""
    path, body, shown = _TRIED[kind]
    key = ' -H "authorization: Bearer $PENSTOCK_API_KEY"' if has_keys else ""
    asked = f"curl -s {url}{path} -H 'content-type: application/json'{key} -d {shlex.quote(body)}"
    return f"{asked} | python3 -c {shlex.quote(f'import json, sys; {shown}')}"


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
