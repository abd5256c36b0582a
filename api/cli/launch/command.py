"""`penstock launch`: start an agent's command line at a running server."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import click
import httpx

from api.cli.errors import OperatorError
from api.cli.launch.agents import AGENTS, Agent, Setup, output_tokens, target_of
from api.cli.running_server import Address, ListedModel, address, find, server_options
from scheduler.shared.user_cache import user_cache_folder

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_LARGE_ENOUGH = (
    "mlx-community/Qwen3.5-4B-MLX-4bit (8 GB of memory), mlx-community/Qwen3.5-9B-4bit (16 GB) or"
    " mlx-community/Qwen3.6-35B-A3B-4bit (32 GB)"
)


def _past_proxies(where: Address, environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that except a server on loopback from proxies, which agents use for every host and
    which cannot reach it; empty if not needed."""
    if where.trust_env or not any(environment.get(name) for name in _PROXIES):
        return {}
    named = [part.strip() for part in environment.get("NO_PROXY", environment.get("no_proxy", "")).split(",")]
    excepted = ",".join(dict.fromkeys([*filter(None, named), httpx.URL(where.url).host]))
    return {"NO_PROXY": excepted, "no_proxy": excepted}


def environment_of(
    setup: Setup, where: Address, environment: Mapping[str, str], folder: Path
) -> dict[str, str]:
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
    return kept | dict(setup.environment) | _past_proxies(where, environment) | files


def check_context(agent: Agent, model: ListedModel) -> None:
    """Raise OperatorError if the model's context does not hold the agent's own prompt and an answer: the
    agent would end at once, in its own words."""
    context, own = model.context_tokens, agent.first_tokens
    if context is not None and own + (answer := output_tokens(context)) > context:
        raise OperatorError(
            f"{agent.title}'s own prompt is about {own:,} tokens, and an answer may have {answer:,};"
            f" the context of {model.name} has {context:,}: serve one such as {_LARGE_ENOUGH}"
        )


@click.command(
    epilog="Arguments of the agent come after `--`: penstock launch claude -- -p 'What does this do?'"
)
@server_options
@click.option(
    "--model",
    metavar="NAME",
    help="One of the served models, for all.  [default: the first; the second for titles and the like]",
)
@click.argument("agent", type=click.Choice(list(AGENTS)))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(
    url: str | None,
    api_key: str | None,
    model: str | None,
    agent: str,
    arguments: tuple[str, ...],
) -> None:
    """Start an agent that works with this server.

    It gets the server's address, its models and their limits from its environment and its arguments; your own
    configuration stays as it is.
    """
    chosen, environment = AGENTS[agent], dict(os.environ)
    executable = shutil.which(chosen.name, path=environment.get("PATH"))
    if executable is None:
        raise OperatorError(
            f"{chosen.title} is not installed: no {chosen.name} on PATH. Install it: {chosen.install}"
        )
    server = find(address(url, api_key, environment))
    target = target_of(server, model)
    check_context(chosen, target.model)
    folder = user_cache_folder(environment) / "launch"
    setup = chosen.setup(target)
    own = environment_of(setup, server.address, environment, folder)
    # Python ignores SIGPIPE, and what is executed would do so, too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execve(executable, (executable, *setup.arguments, *arguments), own)
    except OSError as error:
        raise OperatorError(f"cannot run {executable}: {error.strerror}") from error
