"""How Qwen Code is pointed at a server: its environment, options and files."""

from __future__ import annotations

import json

from api.cli.launch.agent import FOLDER, Agent, LaunchTarget, Setup, Tried, output_tokens

_DEFAULTS = "qwen-defaults.json"


def setup(target: LaunchTarget) -> Setup:
    environment = {"OPENAI_BASE_URL": target.openai_url, "OPENAI_API_KEY": target.key}
    arguments = ("--auth-type", "openai", "--model", target.model.name)
    if (context := target.model.context_tokens) is None:
        return Setup(environment, arguments)
    limits = {
        "QWEN_CODE_MAX_OUTPUT_TOKENS": str(output_tokens(context)),
        # Defaults, which the user's own settings override.
        "QWEN_CODE_SYSTEM_DEFAULTS_PATH": f"{FOLDER}/{_DEFAULTS}",
    }
    settings = {"model": {"generationConfig": {"contextWindowSize": context}}}
    return Setup({**environment, **limits}, arguments, files={_DEFAULTS: json.dumps(settings)})


AGENT = Agent(
    name="qwen",
    title="Qwen Code",
    executable="qwen",
    install="npm install -g @qwen-code/qwen-code",
    speaks="OpenAI chat completions",
    tried=Tried("0.24.4", "2026-11-23", 76),
    setup=setup,
    example=("-y", "-p", "What does note.txt say?"),
    notes="""\
It guesses a model's context from the name; the file says what it is. Where `modelProviders` of the user's
own settings have a model of the same name, that one is used. In a terminal it installs its own updates.
""",
)
