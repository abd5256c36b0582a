"""`penstock show MODEL`: all facts of one model, and what it would do with this machine's memory."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from api.cli.models.disk_models import with_dialects
from api.cli.models.listing import weights_text
from api.cli.models.memory_plan import MemoryPlan
from api.cli.models.reading import ModelsReading, PlannedModel, find_one, folders_option, read
from api.typed_command import typed
from scheduler.shared.gigabytes import gigabytes

_WIDTH = 78
_ANY_TOKENS = 1 << 30
"""A model that names no length may have any."""
_AGENT_TOKENS = (4096, 16384, 32768, 65536, 131072)


@click.command()
@click.argument("model")
@folders_option
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=32768,
    show_default=True,
    help="How many agents with this many tokens each run at a time? No more than the context has.",
)
def show(model: str, folders: tuple[Path, ...], tokens: int) -> None:
    """Show a model on this machine: its files, its dialects, and the memory it takes.

    MODEL is a name that `penstock models` lists, or a folder.
    """
    reading = read([with_dialects(find_one(model, folders))])
    (planned,) = reading.models
    for name, text in facts(planned, reading, tokens):
        filled = textwrap.fill(text, _WIDTH, initial_indent=f"{name:<12}", subsequent_indent=" " * 12)
        click.echo(filled if len(text.split()) > 1 else f"{name:<12}{text}")


def facts(planned: PlannedModel, reading: ModelsReading, tokens: int) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line."""
    model = planned.model
    yield "model", model.name
    yield "folder", str(model.folder)
    if model.disk_bytes:
        yield "on disk", gigabytes(model.disk_bytes)
    if model.partial_bytes:
        yield "", f"and {gigabytes(model.partial_bytes)} of a download that was cut: penstock pull goes on"
    if not model.is_model:
        yield "served", f"no: {model.reason}"
        return
    yield "type", f"{model.model_type}, for {'chats' if model.task == 'chat' else model.task}"
    rest = f", rest {model.dtype}" if model.quantization else ""
    yield "weights", f"{weights_text(model)}{rest}, {gigabytes(model.weights_bytes)} as stored"
    longer = model.context_tokens < model.most_context_tokens < _ANY_TOKENS
    most = f", up to {model.most_context_tokens:,} with --max-model-len" if longer else ""
    yield "context", f"{model.context_tokens:,} tokens{most}"
    if model.positions:
        yield "positions", model.positions
    for number, note in enumerate(model.notes):
        yield "" if number else "note", note
    if model.unread_fields:
        yield "config", f"mlx-lm does not read {', '.join(model.unread_fields)}"
    yield "template", "for chats" if model.chat_template else "none: it completes text, and does not chat"
    for verdict in model.template_verdicts:
        yield "", f"it {verdict}"
    yield "answers", model.found
    yield from _memory(planned.plan, reading, model.context_tokens, tokens)
    if model.quantization and reading.machine is not None and reading.machine.wide_weights:
        yield "packed", f"{gigabytes(model.packed_weights_bytes)} of weights with --weights-dtype packed"
        yield "", "many times slower with several rows and long prompts: no BLAS reads quantised weights"
    yield "serve it", f"{typed()} serve{_argument(planned)}"


def _memory(
    plan: MemoryPlan | None, reading: ModelsReading, context_tokens: int, tokens: int
) -> Iterator[tuple[str, str]]:
    if plan is None or reading.machine is None:
        yield "memory", f"not known: {reading.reason}"
        return
    wide = ", in float32 on processors" if reading.machine.wide_weights else ""
    yield "memory", f"{gigabytes(plan.weights_bytes)} of weights{wide}"
    if not plan.fits:
        yield "", f"does not fit: {plan.reason}"
        return
    yield "", f"{gigabytes(plan.limit_bytes)} for an engine, of it {gigabytes(plan.kv_bytes)} of KV cache"
    if plan.row is None:
        yield "agents", "not known: mlx-lm did not say what a token takes"
        return
    yield "", f"{plan.row.token_bytes:,} bytes of it a token"
    if (longest := plan.longest(plan.row, context_tokens)) < context_tokens:
        yield "", f"one sequence may have {longest:,} of the context's tokens"
    asked = min(tokens, context_tokens)
    counts = sorted({asked, *(one for one in _AGENT_TOKENS if one <= context_tokens)})
    for number, count in enumerate(counts):
        agents = f"{plan.agents(plan.row, count):,} at a time with {count:,} tokens each that share nothing"
        yield "" if number else "agents", agents
    if plan.q8_row is not None:
        agents = f"{plan.agents(plan.q8_row, asked):,}"
        yield "", f"{agents} with {asked:,} tokens each and --kv-cache-dtype q8"


def _argument(planned: PlannedModel) -> str:
    model = planned.model
    # A hub's revision other than main, and a folder, are known by their place.
    return f" --model {model.folder if model.source == 'folder' or '@' in model.name else model.name}"
