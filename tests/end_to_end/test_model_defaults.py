"""A real server's defaults, from its options and its model's file: in its log, its listing, its answers."""

from __future__ import annotations

import json
from typing import Any

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.prompt import model_folder
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, GenerationRequest
from tests.end_to_end.serving import Served, eventually, serving

CLAUDE_CODES_PROMPT = 47_047
"""Tokens of the embedded model in Claude Code's first prompt, as measured."""
CLAUDE_CODES_ANSWER = 32_000
"""The `max_tokens` that it sends."""


def events(served: Served, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in served.log if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def test_what_applies_is_said_at_the_start_and_in_the_listing() -> None:
    """By name, with where each value comes from."""
    names = "penstock,coder:temperature=0.2,thinking=off"
    options = ("--served-model-name", names, "--default-top-k", "40", "--engine", "scripted")
    with serving(*options) as served:
        listed = {model["id"]: model for model in served.get("/v1/models")[1]["data"]}
        eventually(lambda: len(events(served, "model_defaults")) == 2)
        said = {line["model"]: line for line in events(served, "model_defaults")}
        assert served.post(model="coder")[1]["model"] == "coder"
    for name, temperature, source in (
        ("penstock", 0.0, "generation_config"),
        ("coder", 0.2, "served_model_name"),
    ):
        for shown in (listed[name], said[name]):
            assert shown["default_sampling_params"]["temperature"] == temperature
            assert shown["default_sources"]["temperature"] == source
            assert (shown["default_sampling_params"]["top_k"], shown["default_sources"]["top_k"]) == (
                40,
                "option",
            )
    assert (listed["penstock"]["default_thinking"], listed["coder"]["default_thinking"]) == ("auto", "off")


def test_the_embedded_model_is_greedy_where_nobody_says_otherwise(embedded: Served) -> None:
    """Its file says `do_sample: false`."""
    asked = [{"role": "user", "content": "Tell me something about the sea and seven ships."}]
    drawn = {
        embedded.post(messages=asked, max_tokens=24, seed=seed)[1]["choices"][0]["message"]["content"]
        for seed in (1, 2, 3)
    }
    greedy = embedded.post(messages=asked, max_tokens=24, temperature=0)[1]
    assert drawn == {greedy["choices"][0]["message"]["content"]}


def test_the_embedded_model_takes_an_agents_first_prompt(embedded: Served) -> None:
    """Claude Code's, and the answer that it asks for; not computed here, for that takes minutes on a CPU."""
    folder = model_folder.inspect(EMBEDDED_FOLDER)
    (listed,) = embedded.get("/v1/models")[1]["data"]
    assert listed["max_model_len"] == folder.context_tokens >= CLAUDE_CODES_PROMPT + CLAUDE_CODES_ANSWER
    tokenizer = HubTokenizer(EMBEDDED_FOLDER, model_type=folder.model_type)
    messages = ({"role": "system", "content": "ship " * 25_000}, {"role": "user", "content": "Hello"})
    request = GenerationRequest("test", ChatPrompt(messages), max_tokens=CLAUDE_CODES_ANSWER)
    prepared = Preparation(tokenizer, folder).prepare(request)
    assert len(prepared.submit.prompt) > CLAUDE_CODES_PROMPT
    assert prepared.submit.max_tokens == CLAUDE_CODES_ANSWER
