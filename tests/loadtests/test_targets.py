"""`--target` options, and requests to a target."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.targets import EVERYTHING, OPENAI, PRESETS, Launch, Target, TargetError, build_body, parse
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


def test_a_preset_without_an_address_is_to_be_launched() -> None:
    """With arguments of its own, if given; our own also as of another commit."""
    found = parse("b=preset:rapid-mlx,args=--timeout 5 --x 'a b'", {})
    assert isinstance(found, Launch)
    assert found.preset is PRESETS["rapid-mlx"]
    assert (found.arguments, found.commit) == (("--timeout", "5", "--x", "a b"), None)
    before = parse("before=preset:penstock,commit=HEAD~1", {})
    assert before == Launch("before", PRESETS["penstock"], (), "HEAD~1")


def test_options_of_a_running_server() -> None:
    """The key comes from the environment, and is not shown."""
    found = running("a=https://h/v1/,model=m/x,key_env=KEY", KEY="secret")
    assert (found.url, found.model, found.api_key, found.knows) == ("https://h", "m/x", "secret", OPENAI)
    assert "secret" not in repr(found)
    assert running("a=http://h,knows=all").knows == EVERYTHING


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://h", "write NAME=URL"),
        ("a=host:80", "not an http:// or https:// address"),
        ("a=preset:vllm", "no preset 'vllm', only penstock"),
        ("a=preset:penstock,model=x", "no option model here; there are args, commit"),
        ("a=preset:penstock,args='x", "args: No closing quotation"),
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
    body = build_body(wish, target(frozenset({"temperature", "seed"})))
    assert body.keys() == {"model", "messages", "max_tokens", "stream", "temperature", "seed"}
    assert build_body(wish, target(EVERYTHING))["stream_options"] == {"include_usage": True}


def test_an_exact_length_is_asked_for_as_well_as_the_target_can() -> None:
    """ignore_eos; else a bias against the end tokens; else only max_tokens."""
    knows, bias = target(EVERYTHING, (5,)), target(OPENAI, (5, 6))
    assert build_body(ask(), knows)["ignore_eos"] is True
    assert "logit_bias" not in build_body(ask(), knows)
    assert build_body(ask(), bias)["logit_bias"] == {"5": -100.0, "6": -100.0}
    assert "logit_bias" not in build_body(ask(exact=False), bias)
    assert "ignore_eos" not in build_body(ask(exact=False), knows)
