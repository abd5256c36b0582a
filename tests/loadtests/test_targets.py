"""`--target` options, and requests to a target."""

from __future__ import annotations

from typing import Any

import pytest

from api.dialects.openai.schema import ChatCompletionRequest
from loadtests.presets import EVERYTHING, OPENAI, PRESETS
from loadtests.targets import Launch, Target, TargetError, build_body, parse
from loadtests.workload import Ask


def ask(exact: bool = True, **sampling: Any) -> Ask:
    messages = ({"role": "user", "content": "hello"},)
    return Ask(messages=messages, max_tokens=7, exact=exact, sampling=sampling)


def target(knows: frozenset[str], eos: tuple[int, ...] = ()) -> Target:
    return Target("t", "http://x", "m", knows=knows, eos_token_ids=eos)


def running(text: str, **environment: str) -> Target:
    found = parse(text, environment)
    assert isinstance(found, Target)
    return found


def test_an_address_is_a_server_of_unknown_kind() -> None:
    """It gets the fields of OpenAI's reference, and is asked for its model's name."""
    found = running("theirs=http://host:1/v1/")
    assert (found.name, found.url, found.model) == ("theirs", "http://host:1", "")
    assert (found.knows, found.metrics_url, found.ready_path) == (OPENAI, None, "/v1/models")


def test_a_preset_without_an_address_is_to_be_launched() -> None:
    """With a program and arguments of its own, if given."""
    found = parse("b=preset:rapid-mlx,program=/opt/v,args=--timeout 5 --x 'a b'", {})
    assert isinstance(found, Launch)
    assert found.preset is PRESETS["rapid-mlx"]
    assert (str(found.program), found.arguments) == ("/opt/v", ("--timeout", "5", "--x", "a b"))


def test_a_preset_with_an_address_says_what_runs_there() -> None:
    """The preset's fields and metrics; it is asked for its model's name, except mlx_lm.server."""
    ours = running("a=preset:penstock:http://h:2")
    assert (ours.knows, ours.metrics_url) == (PRESETS["penstock"].knows, "http://h:2/metrics")
    assert ours.model == ""
    assert running("a=preset:mlx_lm.server:http://h:2").model == "default_model"


def test_options_of_a_running_server() -> None:
    """The key comes from the environment, and is not shown."""
    found = running(
        "a=https://h,model=m/x,key_env=KEY,knows=seed+top_k,metrics=http://h/m,eos=1+2", KEY="secret"
    )
    assert (found.model, found.api_key, found.metrics_url) == ("m/x", "secret", "http://h/m")
    assert (sorted(found.knows), found.eos_token_ids) == (["seed", "top_k"], (1, 2))
    assert "secret" not in repr(found)
    assert running("a=http://h,knows=all").knows == EVERYTHING


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://h", "write NAME=URL"),
        ("a b=http://h", "write NAME=URL"),
        ("a=", "write NAME=URL"),
        ("a=host:80", "not an http:// or https:// address"),
        ("a=preset:vllm", "no preset 'vllm', only penstock"),
        ("a=http://h,model", "'model' is not an option"),
        ("a=http://h,program=x", "no option program here; there are model"),
        ("a=preset:penstock,model=x", "no option model here; there are program"),
        ("a=preset:penstock,args='x", "args: No closing quotation"),
        ("a=http://h,knows=seed+sead", "knows=sead: there are"),
        ("a=http://h,eos=x", "eos: invalid literal"),
        ("a=http://h,key_env=NONE", "the environment has no NONE"),
    ],
)
def test_what_cannot_be_understood_is_refused(text: str, said: str) -> None:
    """With the wrong words, and the right form."""
    with pytest.raises(TargetError) as caught:
        parse(text, {})
    assert said in str(caught.value)
    assert text in str(caught.value)


def test_a_body_has_what_the_target_knows_and_no_more() -> None:
    """Nor what it would ignore."""
    wish = ask(temperature=0.5, top_k=3, seed=1)
    knowing = target(frozenset({"temperature", "seed"}))
    assert build_body(wish, knowing) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 7,
        "stream": True,
        "temperature": 0.5,
        "seed": 1,
    }
    assert build_body(wish, target(EVERYTHING))["stream_options"] == {"include_usage": True}


def test_an_exact_length_is_asked_for_as_well_as_the_target_can() -> None:
    """ignore_eos; else a bias against the end tokens, beside other biases; else only max_tokens."""
    knows, bias = target(EVERYTHING, (5,)), target(OPENAI, (5, 6))
    wish = ask(logit_bias={"1": 2.0})
    assert build_body(wish, knows)["ignore_eos"] is True
    assert build_body(wish, knows)["logit_bias"] == {"1": 2.0}
    assert build_body(wish, bias)["logit_bias"] == {"1": 2.0, "5": -100.0, "6": -100.0}
    assert "logit_bias" not in build_body(ask(), target(OPENAI))
    assert "logit_bias" not in build_body(ask(), target(frozenset(), (5,)))
    assert "logit_bias" not in build_body(ask(exact=False), bias)
    assert "ignore_eos" not in build_body(ask(exact=False), knows)


def test_our_preset_knows_what_our_server_takes() -> None:
    """A new field of Penstock must be added to the preset."""
    taken = {
        name
        for name, value in {
            "stream_options": {"include_usage": True},
            "logprobs": True,
            "top_logprobs": 2,
            "stop": ["x"],
            "logit_bias": {"1": 1.0},
            "ignore_eos": True,
            **dict.fromkeys(("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"), 0.5),
            **dict.fromkeys(("top_k", "seed", "repetition_penalty"), 1),
        }.items()
        if _accepts({"logprobs": True, name: value})
    }
    assert taken == PRESETS["penstock"].knows


def _accepts(fields: dict[str, Any]) -> bool:
    try:
        ChatCompletionRequest.model_validate(
            {"messages": [{"role": "user", "content": "x"}], "stream": True, **fields}
        )
    except ValueError:
        return False
    return True
