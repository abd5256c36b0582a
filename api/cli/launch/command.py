"""`penstock launch`: start an agent's command line at a running server."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import click
import httpx

from api.cli.errors import OperatorError
from api.cli.launch.agents import AGENTS, Agent, Setup, output_tokens, target_of
from api.cli.running_server import ListedModel, RunningServer, address, find, server_options
from api.smollm2 import model as smollm2
from scheduler.models.embedded_model import EMBEDDED_NAME
from scheduler.shared.user_cache import user_cache_folder

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def setup_of(
    agent: Agent,
    server: RunningServer,
    model: str | None,
    small_model: str | None,
    environment: Mapping[str, str],
) -> Setup:
    """Return what the agent gets. Raise OperatorError if the server has no such model."""
    setup = agent.setup(target_of(server, model, small_model))
    return replace(setup, environment={**setup.environment, **_past_proxies(server, environment)})


def _past_proxies(server: RunningServer, environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that except a server on loopback from proxies, which agents use for every host and
    which cannot reach it; empty if not needed."""
    if server.address.trust_env or not any(environment.get(name) for name in _PROXIES):
        return {}
    host = httpx.URL(server.url).host
    named = [part.strip() for part in environment.get("NO_PROXY", environment.get("no_proxy", "")).split(",")]
    excepted = ",".join(dict.fromkeys([*filter(None, named), host]))
    return {"NO_PROXY": excepted, "no_proxy": excepted}


def environment_of(setup: Setup, environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the agent's whole environment, after writing the setup's files into `folder`, where they stay:
    each has the name of its content, so that agents at different servers have their own."""
    kept = {name: value for name, value in environment.items() if name not in setup.removed}
    files: dict[str, str] = {}
    for variable, content in setup.files.items():
        text = json.dumps(content)
        path = folder / f"{sha256(text.encode()).hexdigest()[:16]}.json"
        folder.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(f".{os.getpid()}")
        whole.write_text(text, "utf-8")
        whole.replace(path)
        files[variable] = str(path)
    return kept | dict(setup.environment) | files


def _executable(agent: Agent, environment: Mapping[str, str]) -> str:
    found = shutil.which(agent.name, path=environment.get("PATH"))
    if found is None:
        raise OperatorError(
            f"{agent.title} is not installed: no {agent.name} on PATH. Install it: {agent.install}"
        )
    return found


_TOO_SMALL = (smollm2.NAME, EMBEDDED_NAME)
_LARGE_ENOUGH = (
    "mlx-community/Qwen3.5-4B-MLX-4bit (8 GB of memory), mlx-community/Qwen3.5-9B-4bit (16 GB) or"
    " mlx-community/Qwen3.6-35B-A3B-4bit (32 GB)"
)


def warning(agent: Agent, model: ListedModel) -> str | None:
    """Return a warning if the model is none for agents, else None. Raise OperatorError if its context does
    not hold the agent's own prompt and an answer: the agent would end at once, in its own words."""
    small = f"{model.name} does no agent's work: serve a model of that size, such as {_LARGE_ENOUGH}"
    context, own = model.context_tokens, agent.first_tokens
    if context is not None and own + (answer := output_tokens(context)) > context:
        raise OperatorError(
            f"{agent.title}'s own prompt is about {own:,} tokens, and an answer may have {answer:,};"
            f" the context of {model.name} has {context:,}{'. ' + small if model.name in _TOO_SMALL else ''}"
        )
    return small if model.name in _TOO_SMALL else None


@click.command(
    epilog="Arguments of the agent come after `--`: penstock launch claude -- -p 'What does this do?'"
)
@server_options
@click.option(
    "--model",
    metavar="NAME",
    help="One of the served models.  [default: the first]",
)
@click.option(
    "--small-model",
    metavar="NAME",
    help="For titles, summaries and the like.  [default: the second served model, or --model]",
)
@click.argument("agent", type=click.Choice(list(AGENTS)))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(
    url: str | None,
    api_key: str | None,
    model: str | None,
    small_model: str | None,
    agent: str,
    arguments: tuple[str, ...],
) -> None:
    """Start an agent that works with this server.

    It gets the server's address, its models and their limits from its environment and its arguments; your own
    configuration stays as it is.
    """
    chosen, environment = AGENTS[agent], dict(os.environ)
    executable = _executable(chosen, environment)
    server = find(address(url, api_key, environment))
    server.need_penstock("launch")
    setup = setup_of(chosen, server, model, small_model, environment)
    if notice := warning(chosen, server.model(model)):
        click.echo(f"penstock: {notice}", err=True)
    own = environment_of(setup, environment, user_cache_folder(environment) / "launch")
    # Python ignores SIGPIPE, and what is executed would do so, too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execve(executable, (executable, *setup.arguments, *arguments), own)
    except OSError as error:
        raise OperatorError(f"cannot run {executable}: {error.strerror}") from error
