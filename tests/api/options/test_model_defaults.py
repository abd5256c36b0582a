"""What a body omits: which source says it, what a model's file may say, and how names are given settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.bodies.sampling_values import SamplingFields
from api.options.model_defaults import (
    NEUTRAL,
    SETTINGS,
    Defaults,
    DefaultSettings,
    Source,
    checked,
    from_file,
    resolve,
)
from api.options.served_names import NamedPreset, named_presets
from scheduler.request import Reasoning, Sampling

_SOME: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(-1, 200),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.01, 10),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
}
SOURCE = st.fixed_dictionaries({}, optional={**_SOME, "thinking": st.sampled_from(["on", "off", "auto"])})
BODY = st.fixed_dictionaries({name: st.none() | some for name, some in _SOME.items()})
THINKING = {"on": True, "off": False, "auto": None}


@given(body=BODY, preset=SOURCE, options=SOURCE, file=SOURCE)
@settings(deadline=None, derandomize=True)
def test_each_field_comes_from_the_first_source_that_says_it(
    body: dict[str, Any], preset: DefaultSettings, options: DefaultSettings, file: DefaultSettings
) -> None:
    """Body, preset of the served name, option, file, neutral: each field on its own."""
    defaults = resolve(preset, options, file)
    drawn = defaults.sampling_for(SamplingFields(**body), seed=7)
    for name, said in body.items():
        order = [
            (None, said),
            (Source.NAME, preset.get(name)),
            (Source.OPTION, options.get(name)),
            (Source.FILE, file.get(name)),
            (Source.NEUTRAL, getattr(Sampling(), name)),
        ]
        source, value = next((source, value) for source, value in order if value is not None)
        assert getattr(drawn, name) == (max(0, value) if name == "top_k" else value)
        assert source in (None, defaults.sources[name])
    assert drawn.seed == 7
    says = [THINKING[each["thinking"]] for each in (preset, options, file) if "thinking" in each]
    assert defaults.thinking == (says[0] if says else None)


@given(body=BODY)
@settings(deadline=None, derandomize=True)
def test_a_body_that_says_everything_gets_that_whatever_the_defaults(body: dict[str, Any]) -> None:
    """So its tokens do not depend on how the server was started."""
    said: dict[str, Any] = {name: value if value is not None else 0.5 for name, value in body.items()} | {
        "top_k": 3
    }
    other = resolve(dict(zip(SETTINGS, (0.1, 0.2, 5, 0.3, 1.5, 1.0, 1.0, "off"), strict=True)), {}, {})
    asked = SamplingFields(**said)
    assert other.sampling_for(asked, seed=1) == NEUTRAL.sampling_for(asked, seed=1)


def test_nothing_said_is_what_it_always_was() -> None:
    """Temperature 1, nothing cut off, no penalty, thinking as the template does."""
    neutral = resolve({}, {}, {})
    assert neutral == NEUTRAL
    assert neutral.sampling == Sampling()
    assert neutral.thinking is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"do_sample": False, "temperature": 0.7, "top_k": 20}, {"temperature": 0.0, "top_k": 20}),
        # transformers would say top_k 50 here, and greedy without do_sample; as vLLM, we take what is there.
        ({"do_sample": True}, {}),
        ({"temperature": 0.7}, {"temperature": 0.7}),
        ({"do_sample": None, "temperature": None, "top_p": None}, {}),
        ({"min_p": 0.05, "repetition_penalty": 1.05}, {"min_p": 0.05, "repetition_penalty": 1.05}),
        ({"temperature": 1, "top_k": -1}, {"temperature": 1.0, "top_k": -1}),
        (
            {"eos_token_id": 3, "max_new_tokens": 5, "thinking": "off", "presence_penalty": 1},
            {},
        ),
        ({}, {}),
    ],
)
def test_the_file_says_what_is_in_it(content: dict[str, Any], says: DefaultSettings) -> None:
    """Only the keys that are there, only those of sampling; null is nothing."""
    assert from_file(content) == (says, {})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", 2.5),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "0.6"),
        ("temperature", True),
        ("temperature", 10**400),
        ("temperature", [0.6]),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 20.5),
        ("top_k", -2),
        ("top_k", 2**31),
        ("min_p", {}),
        ("repetition_penalty", 0),
        ("do_sample", "false"),
        ("do_sample", 0),
    ],
)
def test_what_no_body_may_say_is_ignored_by_name(key: str, value: Any) -> None:
    """The rest of the file still counts, and the message is short whatever the value."""
    says, ignored = from_file({"top_p": 0.9, "temperature": 0.5, key: value})
    assert list(ignored) == [key]
    assert len(ignored[key]) < 120
    expected: dict[str, Any] = {"top_p": 0.9, "temperature": 0.5}
    expected.pop(key, None)
    assert says == expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["do_sample", *SETTINGS]), _JSON))
@settings(deadline=None, derandomize=True)
def test_no_file_can_give_a_value_that_a_body_could_not(content: dict[str, Any]) -> None:
    """Nor keep the server from starting."""
    says, ignored = from_file(content)
    for name, value in says.items():
        assert checked(name, value) == value
    assert ignored.keys() <= content.keys()


@pytest.mark.parametrize(
    ("default", "asked", "template", "enabled"),
    [
        (False, Reasoning(), {}, False),
        (True, Reasoning(), None, True),
        (None, Reasoning(), {}, None),
        (False, Reasoning(enabled=True, effort="high"), {}, True),
        (True, Reasoning(enabled=False), {}, False),
        (False, Reasoning(effort="high"), {}, False),
        (False, Reasoning(), {"enable_thinking": True}, None),
        (False, Reasoning(), {"thinking": True}, None),
        (False, Reasoning(), {"custom": True}, False),
    ],
)
def test_thinking_is_the_default_only_where_nobody_turns_it_on_or_off(
    default: bool | None, asked: Reasoning, template: dict[str, Any] | None, enabled: bool | None
) -> None:
    """A body can do so by its own field or by the template's option."""
    found = Defaults(thinking=default).reasoning_for(asked, template)
    assert (found.enabled, found.effort) == (enabled, asked.effort)


@pytest.mark.parametrize(
    ("text", "presets"),
    [
        ("mine", [NamedPreset("mine")]),
        (" a , owner/b ,", [NamedPreset("a"), NamedPreset("owner/b")]),
        ("qwen3:8b", [NamedPreset("qwen3:8b")]),
        ("qwen3:8b:top_k=5", [NamedPreset("qwen3:8b", {"top_k": 5})]),
        ("temperature", [NamedPreset("temperature")]),
        ("a:temperature", [NamedPreset("a:temperature")]),
        (
            "penstock,coder:temperature=0.2,thinking=off,greedy:temperature=0,last",
            [
                NamedPreset("penstock"),
                NamedPreset("coder", {"temperature": 0.2, "thinking": "off"}),
                NamedPreset("greedy", {"temperature": 0.0}),
                NamedPreset("last"),
            ],
        ),
        (
            "x: top_p = 0.5 , min_p=0.1,presence_penalty=-1",
            [NamedPreset("x", {"top_p": 0.5, "min_p": 0.1, "presence_penalty": -1.0})],
        ),
    ],
)
def test_names_carry_settings(text: str, presets: list[NamedPreset]) -> None:
    """A tag is part of its name; a setting belongs to the name before it."""
    assert list(named_presets(text)) == presets


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:temperatur=1", "'a:temperatur=1'.*'temperatur'.*temperature, top_p"),
        ("a:temperature=1,heat=3", "'heat=3'.*'heat'.*temperature, top_p"),
        ("a:seed=1", "'a:seed=1'.*no setting 'seed'"),
        ("a,temperature=1", "'temperature=1' belongs to no name; write NAME:temperature=1"),
        ("temperature=1", "belongs to no name"),
        ("a:temperature=1,b,top_k=2", "'top_k=2' belongs to no name"),
        ("a:temperature=3", "'a:temperature=3': .*less than or equal to 2"),
        ("a:temperature=warm", "'a:temperature=warm': .*number"),
        ("a:temperature=", "'a:temperature=': .*number"),
        ("a:temperature=nan", "finite"),
        ("a:top_k=1.5", "integer"),
        ("a:thinking=yes", "'on', 'off' or 'auto'"),
        ("a:top_k=1,top_k=2", "'top_k=2': 'a' has top_k already"),
        ("a,b,a", "'a' is there twice"),
        (":temperature=1", "':temperature=1' has no name"),
        (" , ", "no name"),
    ],
)
def test_a_bad_part_is_quoted(text: str, words: str) -> None:
    """With what would be right."""
    with pytest.raises(ValueError, match=words):
        named_presets(text)
