"""`penstock show MODEL`: all facts of one model, and what it would do with this machine's memory."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from api.cli import machine
from api.cli.errors import OperatorError
from api.cli.machine import Answer, memory_plan
from api.cli.models.disk_models import DiskModel, named
from api.typed_command import typed
from scheduler.engine.budget.limits import MemoryTooSmall
from scheduler.errors import StartupError
from scheduler.fleet.memory_need import weights_bytes
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.shared.gigabytes import gigabytes

_WIDTH = 78
_ANY_TOKENS = 1 << 30
"""A model that names no length may have any."""
_AGENT_TOKENS = (4096, 16384, 32768, 65536, 131072)
_REASON_CHARACTERS = 200
"""Bound on a reason: mlx-lm names every tensor that is missing."""


@click.command()
@click.argument("model")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=32768,
    show_default=True,
    help="How many agents with this many tokens each run at a time? No more than the context has.",
)
def show(model: str, tokens: int) -> None:
    """Show a model on this machine: its files, its dialects, and the memory it takes.

    MODEL is a name that `penstock models` lists, or a folder.
    """
    for name, text in facts(named(model), tokens):
        filled = textwrap.fill(text, _WIDTH, initial_indent=f"{name:<12}", subsequent_indent=" " * 12)
        click.echo(filled if len(text.split()) > 1 else f"{name:<12}{text}")


def facts(model: DiskModel, tokens: int) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line."""
    yield "model", model.name
    yield "folder", str(model.folder)
    if model.disk_bytes:
        yield "on disk", gigabytes(model.disk_bytes)
    answer, reason, unknown = None, model.reason, ""
    inspected = model.inspected
    if inspected is not None:
        try:
            tokenizer = HubTokenizer(model.folder, model_type=inspected.model_type)
            answer = machine.ask(model.folder)
        except OperatorError as error:
            unknown = str(error)
        except (StartupError, OSError) as error:
            reason = str(error).removeprefix("--model: ")
        # Embedders are loaded in a way of their own (`mlx/pooling/loading.py`).
        if answer and answer.model and answer.model.error and inspected.kind == "chat":
            words = " ".join(answer.model.error.split())[:_REASON_CHARACTERS]
            reason = f"mlx-lm cannot load it: {words}"
    if inspected is None or reason:
        yield "served", f"no: {reason}"
        return
    yield "type", f"{inspected.model_type}, for {'chats' if inspected.kind == 'chat' else inspected.kind}"
    stored = f"{model.quantization}, rest {model.dtype}" if model.quantization else model.dtype
    yield "weights", f"{stored}, {gigabytes(weights_bytes(model.folder, 'stored', None))} as stored"
    reading = inspected.reading
    assert reading is not None
    longer = inspected.context_tokens < reading.context.most_tokens < _ANY_TOKENS
    most = f", up to {reading.context.most_tokens:,} with --max-model-len" if longer else ""
    yield "context", f"{inspected.context_tokens:,} tokens{most}"
    if reading.positions:
        yield "positions", reading.positions
    for number, note in enumerate(reading.notes):
        yield "" if number else "note", note
    if reading.unread:
        yield "config", f"mlx-lm does not read {', '.join(reading.unread)}"
    no_template = "none: it completes text, and does not chat"
    yield "template", "for chats" if tokenizer.has_chat_template else no_template
    for verdict in tokenizer.template_verdicts:
        yield "", f"it {verdict}"
    yield "answers", tokenizer.found
    if answer is None:
        yield "memory", f"not known: {unknown}"
    else:
        yield from _memory(model, answer, inspected.context_tokens, tokens)
    # A hub's revision other than main, and a folder, are known by their place.
    place = model.folder if model.is_given or "@" in model.name else model.name
    yield "serve it", f"{typed()} serve --model {place}"


def _memory(model: DiskModel, answer: Answer, context_tokens: int, tokens: int) -> Iterator[tuple[str, str]]:
    found, measured = answer
    if measured is None or measured.error:
        held = weights_bytes(model.folder, "float32" if found.wide_weights else "stored", None)
    else:
        held = measured.weights_bytes
    wide = ", in float32 on processors" if found.wide_weights else ""
    yield "memory", f"{gigabytes(held)} of weights{wide}"
    try:
        plan = memory_plan(found, held)
    except MemoryTooSmall as error:
        yield "", f"does not fit: {error}"
    else:
        yield "", f"{gigabytes(plan.limit_bytes)} for an engine, of it {gigabytes(plan.kv_bytes)} of KV cache"
        if measured is None or measured.error:
            yield "agents", "not known: mlx-lm did not say what a token takes"
        else:
            yield "", f"{measured.row.token_bytes:,} bytes of it a token"
            asked = min(tokens, context_tokens)
            counts = sorted({asked, *(one for one in _AGENT_TOKENS if one <= context_tokens)})
            for number, count in enumerate(counts):
                agents = f"{plan.agents(measured.row, count):,} at a time with {count:,} tokens each"
                yield "" if number else "agents", f"{agents} that share nothing"
            if measured.q8_row is not None:
                agents = f"{plan.agents(measured.q8_row, asked):,}"
                yield "", f"{agents} with {asked:,} tokens each and --kv-cache-dtype q8"
    if model.quantization and found.wide_weights:
        packed = weights_bytes(model.folder, "packed", None)
        yield "packed", f"{gigabytes(packed)} of weights with --weights-dtype packed"
        yield "", "many times slower with several rows and long prompts: no BLAS reads quantised weights"
