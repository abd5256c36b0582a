"""How aider is pointed at a server: its environment, options and files."""

from __future__ import annotations

import json

from api.cli.launch.agent import FOLDER, Agent, LaunchTarget, Setup, Tried, output_tokens
from api.cli.running_server import ListedModel

_METADATA = "aider-models.json"


def setup(target: LaunchTarget) -> Setup:
    # aider's own variables: a project's `.env` overrides OPENAI_API_BASE and OPENAI_API_KEY.
    environment = {"AIDER_OPENAI_API_BASE": target.openai_url, "AIDER_OPENAI_API_KEY": target.key}
    arguments = ("--model", _named(target.model), "--weak-model", _named(target.small))
    known = {_named(model): _metadata(model) for model in (target.model, target.small)}
    environment["AIDER_MODEL_METADATA_FILE"] = f"{FOLDER}/{_METADATA}"
    return Setup(environment, arguments, files={_METADATA: json.dumps(known)})


def _named(model: ListedModel) -> str:
    # litellm names a model by its provider, then its name.
    return f"openai/{model.name}"


def _metadata(model: ListedModel) -> dict[str, str | int | float]:
    known: dict[str, str | int | float] = {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
    }
    if (context := model.context_tokens) is not None:
        known |= {"max_input_tokens": context, "max_output_tokens": output_tokens(context)}
    return known


AGENT = Agent(
    name="aider",
    title="aider",
    executable="aider",
    install="python -m pip install aider-install && aider-install",
    speaks="OpenAI chat completions",
    tried=Tried("0.86.2", "2026-11-23", 10),
    setup=setup,
    example=(
        "--edit-format",
        "diff",
        "--no-git",
        "--yes-always",
        "--message",
        "Make it a stork",
        "note.txt",
    ),
    notes="""\
It calls no tools; what it edits, it reads out of the text. The file tells it the model's context, so that
it summarizes in time, and that the tokens cost nothing.
""",
)
