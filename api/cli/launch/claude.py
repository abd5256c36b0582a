"""How Claude Code is pointed at a server: its environment, options and files."""

from __future__ import annotations

from api.cli.launch.agent import IDLE_MS, Agent, LaunchTarget, Setup, Tried, output_tokens


def setup(target: LaunchTarget) -> Setup:
    environment = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        "ANTHROPIC_MODEL": target.model.name,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": target.model.name,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": target.model.name,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.small.name,
        # With this, Claude Code ignores another provider in the `env` of the user's settings.json.
        "CLAUDE_CODE_PROVIDER_MANAGED_BY_HOST": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Its default would be the first model with a context of a million.
        "CLAUDE_CODE_DISABLE_1M_CONTEXT": "1",
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(IDLE_MS),
    }
    if (context := target.model.context_tokens) is not None:
        environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(context)
        environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(output_tokens(context))
    return Setup(
        environment,
        removed=(
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_CUSTOM_HEADERS",
            "ANTHROPIC_SMALL_FAST_MODEL",
            "ANTHROPIC_UNIX_SOCKET",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_SUBAGENT_MODEL",
            "CLAUDE_CODE_USE_ANTHROPIC_AWS",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_FOUNDRY",
            "CLAUDE_CODE_USE_MANTLE",
            "CLAUDE_CODE_USE_VERTEX",
        ),
    )


AGENT = Agent(
    name="claude",
    title="Claude Code",
    executable="claude",
    install="npm install -g @anthropic-ai/claude-code",
    speaks="Anthropic messages",
    tried=Tried("2.1.197", "2026-11-23", 76),
    setup=setup,
    example=("-p", "What does note.txt say?", "--allowedTools", "Read"),
    notes="""\
With [two models](README.md#several-models) the second one gets what it asks its small model for (`--model
haiku`, subagents of that model, pages it fetches). It takes a model that it does not know for one of
200,000 tokens and asks for answers of 32,000: the last two variables say what the model has. The key goes
into `ANTHROPIC_AUTH_TOKEN`, because it asks whether it may use an `ANTHROPIC_API_KEY`, and keeps the
answer; `launch` removes your own from what it sees. `CLAUDE_CODE_PROVIDER_MANAGED_BY_HOST` has it pass over
the addresses, keys and models in `env` of your `settings.json`.

Without `CLAUDE_STREAM_IDLE_TIMEOUT_MS` it ends a request whose prefill takes more than five minutes, and asks
again: with it, an answer whose first token came after 340 s was read at once.

Its billing line, which changes, never reaches the model. A system message that it puts behind the first
question becomes part of that question for templates that take none there. Its prompt before the first word
was 46,882 of the embedded model's tokens, whose vocabulary is small; when it asked again, 46,087 of them
came from the cache.
""",
)
