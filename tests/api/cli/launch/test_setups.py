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
from api.cli.launch.command import environment_of, setup_of, warning
from api.cli.running_server import ListedModel, RunningServer

CODER = ListedModel("coder", 131_072)
TITLES = ListedModel("titles", 16_384)
VECTORS = ListedModel("vectors", 512, "embedding")
UNSAID = ListedModel("unsaid")
URL = "http://127.0.0.1:8123"


def server(*models: ListedModel, key: str | None = "k-1", url: str = URL) -> RunningServer:
    return RunningServer(url, key, models, is_penstock=True)


def setup(agent: str, *models: ListedModel, model: str | None = None, key: str | None = "k-1") -> Setup:
    return setup_of(AGENTS[agent], server(*models, key=key), model, None, {})


def pairs(arguments: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def codex_settings(arguments: tuple[str, ...]) -> Mapping[str, object]:
    assert set(arguments[::2]) == {"-c"}
    return tomllib.loads("\n".join(arguments[1::2]))


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_gets_the_address_the_key_and_the_model(agent: str) -> None:
    got = setup(agent, CODER)
    said = json.dumps([dict(got.environment), got.arguments])
    assert URL in said
    assert "coder" in said
    assert "k-1" in got.environment.values() or "k-1" in got.environment["OPENCODE_CONFIG_CONTENT"]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_key_is_never_an_argument(agent: str) -> None:
    """Every user of the machine sees arguments."""
    assert "k-1" not in " ".join(setup(agent, CODER, TITLES).arguments)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_server_without_keys_gets_a_dummy(agent: str) -> None:
    """Agents do not start without one, or take the user's own key for another provider."""
    assert "dummy" in " ".join(setup(agent, CODER, key=None).environment.values())


@pytest.mark.parametrize("agent", AGENTS)
def test_a_model_whose_context_is_unknown_has_no_limits(agent: str) -> None:
    """Other limits than the agent's own are the server's or none."""
    got = setup(agent, UNSAID)
    said = json.dumps([dict(got.environment), got.arguments, dict(got.files)])
    for limit in ("None", "null", "MAX", "limit", "max_", "context"):
        assert limit not in said


def test_claude_code_stays_within_the_model() -> None:
    environment = setup("claude", TITLES).environment
    assert environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "16384"
    assert environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "4096"


def test_claude_codes_small_model_is_the_second_one() -> None:
    environment = setup("claude", VECTORS, CODER, TITLES).environment
    assert environment["ANTHROPIC_MODEL"] == "coder"
    assert environment["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "titles"
    assert environment["ANTHROPIC_DEFAULT_SONNET_MODEL"] == "coder"


def test_claude_code_gets_no_other_providers_key() -> None:
    own = {"ANTHROPIC_API_KEY": "sk-ant-own", "CLAUDE_CODE_USE_BEDROCK": "1", "HOME": "/home/me"}
    environment = environment_of(setup("claude", CODER), own, Path("/tmp/f"))
    assert environment["HOME"] == "/home/me"
    assert "sk-ant-own" not in environment.values()
    assert "CLAUDE_CODE_USE_BEDROCK" not in environment


def test_codexs_provider_is_in_its_arguments() -> None:
    got = setup("codex", CODER)
    assert codex_settings(got.arguments) == {
        "model": "coder",
        "model_provider": "penstock",
        "model_context_window": 131_072,
        "model_providers": {
            "penstock": {
                "name": "Penstock",
                "base_url": f"{URL}/v1",
                "env_key": "PENSTOCK_API_KEY",
                "wire_api": "responses",
                "stream_idle_timeout_ms": 3_600_000,
            }
        },
    }
    assert got.environment == {"PENSTOCK_API_KEY": "k-1"}


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


def test_qwen_code_learns_the_context(tmp_path: Path) -> None:
    got = setup("qwen", TITLES)
    assert pairs(got.arguments) == {"--auth-type": "openai", "--model": "titles"}
    path = environment_of(got, {}, tmp_path)["QWEN_CODE_SYSTEM_DEFAULTS_PATH"]
    assert json.loads(Path(path).read_text()) == {
        "model": {"generationConfig": {"contextWindowSize": 16_384}}
    }


def test_aider_learns_both_models() -> None:
    got = setup("aider", CODER, TITLES)
    assert pairs(got.arguments) == {"--model": "openai/coder", "--weak-model": "openai/titles"}
    (models,) = got.files.values()
    limits = {name: known["max_input_tokens"] for name, known in models.items()}
    assert limits == {"openai/coder": 131_072, "openai/titles": 16_384}


@given(st.integers(1, 1 << 24))
def test_an_answer_leaves_most_of_the_context(context_tokens: int) -> None:
    assert 1 <= output_tokens(context_tokens) <= max(1, min(32_000, context_tokens // 4))


def test_a_model_that_is_named_does_all() -> None:
    """Unless another is named for small things."""
    both = server(CODER, TITLES)
    assert target_of(both, "titles", None).small == TITLES
    assert target_of(both, "titles", "coder").small == CODER
    assert target_of(both, None, None).small == TITLES


@pytest.mark.parametrize(("wanted", "said"), [("gpt", "it has coder, vectors"), ("vectors", "for embedding")])
def test_a_model_that_cannot_be_had_is_an_error(wanted: str, said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        target_of(server(CODER, VECTORS), wanted, None)


def test_a_context_without_room_for_the_first_request_is_refused_before() -> None:
    """Claude Code's prompt has some 19,000 tokens; OpenCode's fits into 8,192, and its answer does not."""
    agent = AGENTS["claude"]
    assert warning(agent, CODER) is None
    assert warning(agent, UNSAID) is None
    with pytest.raises(OperatorError, match="the context of titles has 16,384"):
        warning(agent, TITLES)
    with pytest.raises(OperatorError, match=r"smollm2 has 8,192.* does no agent's work"):
        warning(AGENTS["opencode"], ListedModel("smollm2", 8_192))
    assert warning(AGENTS["aider"], ListedModel("smollm2", 8_192))


@pytest.mark.parametrize("name", ["smollm2", "penstock-embedded"])
def test_a_model_for_tests_is_answered_with_three_that_agents_can_use(name: str) -> None:
    said = warning(AGENTS["claude"], ListedModel(name, 1 << 20)) or ""
    assert said.startswith(f"{name} does no agent's work")
    assert said.count("mlx-community/") == 3


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
    got = setup_of(AGENTS["claude"], server(CODER, url=url), None, None, own).environment
    assert (got.get("NO_PROXY"), got.get("no_proxy")) == (excepted, excepted)
