"""What a body omits: which source says it, what each may say, and how names are given settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.bodies.sampling_values import SamplingFields
from api.options.model_defaults import Defaults, DefaultSettings, Source
from api.options.options import load
from api.options.settings import ServeSettings
from scheduler.errors import OptionError
from scheduler.request import Sampling

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
OF_FILE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
FILE = st.fixed_dictionaries({}, optional={name: _SOME[name] for name in OF_FILE})
BODY = st.fixed_dictionaries({name: st.none() | some for name, some in _SOME.items()})
THINKING = {"on": True, "off": False, "auto": None}


def of_file(content: dict[str, Any], **options: str) -> tuple[Defaults, dict[str, str]]:
    """The defaults of a model with this generation_config.json, and what of it is ignored."""
    found, ignored = load(options).defaults("x", content)
    return found["x"], ignored


def said_by(defaults: Defaults, source: Source) -> DefaultSettings:
    """Thinking aside."""
    return {
        name: getattr(defaults.sampling, name)
        for name, said in defaults.sources.items()
        if said is source and name != "thinking"
    }


@given(body=BODY, preset=SOURCE, options=SOURCE, file=FILE, texts=st.booleans())
@settings(deadline=None, max_examples=50)
def test_each_setting_comes_from_the_first_source_that_says_it(
    body: dict[str, Any], preset: DefaultSettings, options: DefaultSettings, file: dict[str, Any], texts: bool
) -> None:
    """Body, preset of the served name, option (a text, or a value in a file of models), file, neutral."""
    name = "x:" + ",".join(f"{name}={value}" for name, value in preset.items()) if preset else "x"
    flags = {f"default_{name}": str(value) if texts else value for name, value in options.items()}
    started = ServeSettings.model_validate({"served_model_name": name, **flags})
    found, ignored = started.defaults("", file)
    defaults = found["x"]
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
    assert (drawn.seed, ignored) == (7, {})
    says = [THINKING[each["thinking"]] for each in (preset, options) if "thinking" in each]
    assert defaults.thinking == (says[0] if says else None)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"do_sample": False, "temperature": 0.7, "top_k": 20}, {"temperature": 0.0, "top_k": 20}),
        # transformers would say top_k 50 here, and greedy without do_sample; as vLLM, we take what is there.
        ({"do_sample": True}, {}),
        ({"do_sample": None, "temperature": None, "top_p": None}, {}),
        ({"temperature": 1, "top_k": -1}, {"temperature": 1.0, "top_k": 0}),
        (
            {"eos_token_id": 3, "max_new_tokens": 5, "thinking": "off", "presence_penalty": 1},
            {},
        ),
    ],
)
def test_the_file_says_what_is_in_it(content: dict[str, Any], says: DefaultSettings) -> None:
    """Only the keys that are there, only those of sampling; null is nothing. Nothing if it is not read."""
    defaults, ignored = of_file(content)
    assert (said_by(defaults, Source.FILE), ignored) == (says, {})
    assert of_file(content | {"top_p": 7}, generation_config="none") == (Defaults(), {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (2.5, math.nan, True, 10**400, [0.6])),
        *(("top_p", 0), ("top_k", 20.5), ("min_p", -1), ("repetition_penalty", 10.5)),
        *(("presence_penalty", 3), ("frequency_penalty", -3)),
        ("thinking", "maybe"),
    ],
)
def test_what_no_body_may_say_no_source_says(name: str, value: Any) -> None:
    """A name and an option refuse it, as text and in a file of models; a model's file is read without it, and
    the message is short whatever the value."""
    with pytest.raises(OptionError, match=f"--default-{name.replace('_', '-')} "):
        load({f"default_{name}": str(value)})
    with pytest.raises(ValueError, match=f"default_{name}"):
        ServeSettings.model_validate({f"default_{name}": value})
    with pytest.raises(OptionError, match=f"--served-model-name .*'x:{name}="):
        load({"served_model_name": f"x:{name}={value}".replace(",", ";")})
    defaults, ignored = of_file({"eos_token_id": 3, name: value})
    assert defaults == Defaults()
    if name in OF_FILE:
        assert list(ignored) == [name]
        assert len(ignored[name]) < 120


@pytest.mark.parametrize(
    ("text", "presets"),
    [
        (None, {"/m/a,b:c=d": {}}),
        (" a , owner/b ,", {"a": {}, "owner/b": {}}),
        ("qwen3:8b:top_k=5", {"qwen3:8b": {"top_k": 5}}),
        ("a:temperature", {"a:temperature": {}}),
        (
            "penstock,coder:temperature=0.2,thinking=off,greedy:temperature=0,last",
            {
                "penstock": {},
                "coder": {"temperature": 0.2, "thinking": "off"},
                "greedy": {"temperature": 0.0},
                "last": {},
            },
        ),
        (
            "x: top_p = 0.5 , min_p=0.1,presence_penalty=-1",
            {"x": {"top_p": 0.5, "min_p": 0.1, "presence_penalty": -1.0}},
        ),
    ],
)
def test_names_carry_settings(text: str | None, presets: dict[str, DefaultSettings]) -> None:
    """A tag is part of its name; a setting belongs to the name before it. The model's own name is one,
    whatever is in it: a folder's path may hold what would separate names."""
    found = ServeSettings.model_validate({"served_model_name": text}).served_names("/m/a,b:c=d")
    assert list(found.items()) == list(presets.items())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:temperature=1,heat=3", "'heat=3'.*'heat'.*temperature, top_p"),
        ("a:seed=1", "'a:seed=1'.*no setting 'seed'"),
        ("a,temperature=1", "'temperature=1' belongs to no name; write NAME:temperature=1"),
        ("a:temperature=1,b,top_k=2", "'top_k=2' belongs to no name"),
        ("a:temperature=3", "'a:temperature=3': .*less than or equal to 2"),
        ("a:temperature=warm", "'a:temperature=warm': .*number"),
        ("a:top_k=1,top_k=2", "'top_k=2': 'a' has top_k already"),
        ("a,b,a", "'a' is there twice"),
        (":temperature=1", "':temperature=1' has no name"),
        *((text, "contains no name") for text in (" , ", ",", "")),
    ],
)
def test_a_bad_part_is_quoted(text: str, words: str) -> None:
    """With what would be right, and the option."""
    with pytest.raises(OptionError, match=f"--served-model-name .*{words}"):
        load({"served_model_name": text})
