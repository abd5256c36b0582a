"""How OpenCode is pointed at a server: its environment, options and files."""

from __future__ import annotations

import json
from typing import Any

from api.cli.launch.agent import Agent, KeptSettings, LaunchTarget, Setup, Tried, output_tokens
from api.cli.running_server import ListedModel


def _settings(target: LaunchTarget) -> dict[str, Any]:
    return {
        "provider": {
            "penstock": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Penstock",
                "options": {"baseURL": target.openai_url, "apiKey": target.key},
                "models": {model.name: _model(model) for model in target.models},
            }
        },
        "model": f"penstock/{target.model.name}",
        "small_model": f"penstock/{target.small.name}",
    }


def _model(model: ListedModel) -> dict[str, Any]:
    context = model.context_tokens
    limit = {} if context is None else {"limit": {"context": context, "output": output_tokens(context)}}
    return {"name": model.name, **limit}


def setup(target: LaunchTarget) -> Setup:
    # OpenCode merges it with the user's own files, and reads it after them.
    return Setup({"OPENCODE_CONFIG_CONTENT": json.dumps(_settings(target))})


AGENT = Agent(
    name="opencode",
    title="OpenCode",
    executable="opencode",
    install="npm install -g opencode-ai",
    speaks="OpenAI chat completions",
    tried=Tried("1.18.33", "2026-11-23", 30),
    setup=setup,
    example=("run", "What does note.txt say?"),
    kept=KeptSettings("opencode.json", "json", lambda target: json.dumps(_settings(target), indent=1)),
    notes="""\
`limit` is what the model has: without it, it asks for 32,000 tokens of answer. Your own `opencode.json` is
read before what `launch` gives it in `OPENCODE_CONFIG_CONTENT`. It takes the folder from `PWD`, as a shell
sets it. An answer whose first token came after 400 s was read.
""",
)
