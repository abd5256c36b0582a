"""What each agent gets for a server: pure, from its description."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.cli.errors import OperatorError
from api.cli.launch.agents import AGENTS, Setup, output_tokens, target_of
from api.cli.launch.command import check_context, environment_of
from api.cli.running_server import Address, ListedModel, RunningServer

CODER = ListedModel("coder", 131_072)
TITLES = ListedModel("titles", 16_384)
VECTORS = ListedModel("vectors", 512, "embedding")
UNSAID = ListedModel("unsaid")
URL = "http://127.0.0.1:8123"


def server(*models: ListedModel, key: str | None = "k-1") -> RunningServer:
    return RunningServer(URL, key, models, is_penstock=True)


def setup(agent: str, *models: ListedModel, model: str | None = None, key: str | None = "k-1") -> Setup:
    return AGENTS[agent].setup(target_of(server(*models, key=key), model))


def codex_settings(arguments: tuple[str, ...]) -> Mapping[str, object]:
    assert set(arguments[::2]) == {"-c"}
    return tomllib.loads("\n".join(arguments[1::2]))


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_gets_the_address_the_key_and_the_model(agent: str) -> None:
    """The key never as an argument, which every user of the machine sees, and a dummy where the server has
    none: agents do not start without one, or take the user's own key for another provider. Of a context that
    is unknown it has no limits."""
    got = setup(agent, CODER)
    said = json.dumps([dict(got.environment), got.arguments])
    assert URL in said
    assert "coder" in said
    assert "k-1" in got.environment.values() or "k-1" in got.environment["OPENCODE_CONFIG_CONTENT"]
    assert "k-1" not in " ".join(got.arguments)
    assert "dummy" in " ".join(setup(agent, CODER, key=None).environment.values())
    got = setup(agent, UNSAID)
    said = json.dumps([dict(got.environment), got.arguments, dict(got.files)])
    for limit in ("None", "null", "MAX", "limit", "max_", "context"):
        assert limit not in said


def test_claude_code_gets_no_other_providers_key() -> None:
    own = {"ANTHROPIC_API_KEY": "sk-ant-own", "CLAUDE_CODE_USE_BEDROCK": "1", "HOME": "/home/me"}
    environment = environment_of(setup("claude", CODER), Address(URL), own, Path("/tmp/f"))
    assert environment["HOME"] == "/home/me"
    assert "sk-ant-own" not in environment.values()
    assert "CLAUDE_CODE_USE_BEDROCK" not in environment


@given(name=st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_models_name_is_a_toml_string(name: str) -> None:
    assert codex_settings(setup("codex", ListedModel(name)).arguments)["model"] == name


def test_opencode_may_switch_between_all_models_that_chat() -> None:
    settings = json.loads(setup("opencode", CODER, TITLES, VECTORS).environment["OPENCODE_CONFIG_CONTENT"])
    assert (settings["model"], settings["small_model"]) == ("penstock/coder", "penstock/titles")
    assert settings["provider"]["penstock"]["models"] == {
        "coder": {"name": "coder", "limit": {"context": 131_072, "output": 32_000}},
        "titles": {"name": "titles", "limit": {"context": 16_384, "output": 4096}},
    }


@given(st.integers(1, 1 << 24))
def test_an_answer_leaves_most_of_the_context(context_tokens: int) -> None:
    assert 1 <= output_tokens(context_tokens) <= max(1, min(32_000, context_tokens // 4))


def test_a_model_that_is_named_does_all() -> None:
    """For small things, too."""
    both = server(CODER, TITLES)
    assert target_of(both, "coder").small == CODER
    assert target_of(both, None).small == TITLES


@pytest.mark.parametrize(("wanted", "said"), [("gpt", "it has coder, vectors"), ("vectors", "for embedding")])
def test_a_model_that_cannot_be_had_is_an_error(wanted: str, said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        target_of(server(CODER, VECTORS), wanted)


def test_a_context_without_room_for_the_first_request_is_refused_before() -> None:
    """Claude Code's prompt has some 19,000 tokens; OpenCode's fits into 8,192, and its answer does not."""
    for model in (CODER, UNSAID):
        check_context(AGENTS["claude"], model)
    check_context(AGENTS["aider"], ListedModel("smollm2", 8_192))
    for name, model, said in (
        ("claude", TITLES, "the context of titles has 16,384"),
        ("opencode", ListedModel("smollm2", 8_192), "smollm2 has 8,192: serve one such as mlx-community/"),
    ):
        with pytest.raises(OperatorError, match=said):
            check_context(AGENTS[name], model)


@pytest.mark.parametrize(
    ("url", "own", "excepted"),
    [
        (URL, {"HTTPS_PROXY": "http://proxy"}, "127.0.0.1"),
        (URL, {"http_proxy": "http://proxy", "no_proxy": "a, b"}, "a,b,127.0.0.1"),
        (URL, {}, None),
        ("http://far:8000", {"HTTP_PROXY": "http://proxy"}, None),
    ],
)
def test_a_proxy_is_not_asked_for_this_machine(url: str, own: dict[str, str], excepted: str | None) -> None:
    got = environment_of(setup("claude", CODER), Address(url), own, Path("/tmp/f"))
    assert (got.get("NO_PROXY"), got.get("no_proxy")) == (excepted, excepted)
