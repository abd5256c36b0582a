"""Detection of a model's notation: by its template and vocabulary, or from the operator's options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from scheduler.answer.answer_format import Layout, answer_format
from scheduler.errors import OptionError
from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.prompt.tokenizer import HubTokenizer


@dataclass
class Tokenizer:
    """The part of transformers' tokenizer that the detection reads."""

    chat_template: str | None = None
    vocabulary: tuple[str, ...] = ()
    init_kwargs: dict[str, Any] = field(default_factory=dict)

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.vocabulary)}


THINK = ("<think>", "</think>")


def test_the_vocabulary_shows_the_reasoning() -> None:
    """As mlx-lm infers it, and Mistral's, which mlx-lm does not know; gpt-oss has a layout of its own."""
    for vocabulary, start in ((THINK, "<think>"), (("[THINK]", "[/THINK]"), "[THINK]")):
        found = answer_format(Tokenizer("x", vocabulary), "")
        assert found.reasoning is not None
        assert found.reasoning.start == start
    assert answer_format(Tokenizer("x"), "").reasoning is None
    tokens = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>")
    harmony = answer_format(Tokenizer("x", tokens), "gpt_oss")
    assert harmony.layout is Layout.HARMONY
    assert set(tokens) <= harmony.spelled(tools=False)


def test_the_template_shows_what_stands_around_thoughts_and_text() -> None:
    """Granite 3.2's words and Apriel's, Hunyuan's tags, Muse's headers."""
    granite = "Write after 'Here is my thought process:', and your answer after 'Here is my response:'."
    assert answer_format(Tokenizer(granite), "").reasoning_notation == "granite"
    apriel = "Here are my reasoning steps:\n{{ m.reasoning_content }}\n[BEGIN FINAL RESPONSE]\n"
    assert answer_format(Tokenizer(apriel), "").reasoning_notation == "apriel"
    assert answer_format(Tokenizer("to=self<atem:function_calls>"), "").layout is Layout.MUSE_SPARK
    hunyuan = answer_format(Tokenizer("{{ '<think>\n' }}</think>{{ '<answer>\n' }}</answer>"), "")
    assert hunyuan.hidden_marks == ("<answer>", "</answer>")


def test_a_model_may_name_its_parser_and_its_template() -> None:
    """`tool_parser_type` and `chat_template_type`, in the folder or by the model's type."""
    named = answer_format(Tokenizer(init_kwargs={"tool_parser_type": "laguna"}), "")
    assert named.tools is not None
    assert named.tools.name == "laguna"
    deepseek = answer_format(Tokenizer(None, THINK, {"chat_template_type": "deepseek_v32"}), "")
    assert deepseek.tools is not None
    assert deepseek.tools.name == "dsml"
    muse = answer_format(Tokenizer(), "muse_spark")
    assert muse.layout is Layout.MUSE_SPARK
    with pytest.raises(OptionError, match="no_such"):
        answer_format(Tokenizer(init_kwargs={"tool_parser_type": "no_such"}), "")


def test_none_turns_either_off() -> None:
    """Unknown names are refused with the option's name."""
    found = answer_format(Tokenizer("<arg_key>", THINK), "", tool_parser="none", reasoning_parser="none")
    assert (found.tools, found.reasoning) == (None, None)
    for option in ("tool_parser", "reasoning_parser"):
        with pytest.raises(OptionError, match=option.replace("_", "-")):
            answer_format(Tokenizer(), "", **{option: "nope"})


def test_control_tokens_of_the_notation_are_seen_and_no_others() -> None:
    """A mark of which a special token is a part would otherwise never be found."""
    hub = HubTokenizer(TOKENIZER_FOLDER)
    ids = hub.encode("a<|im_start|>b<|im_end|>c")
    for mark in ("<|im_start|>", "function call<|im_start|>"):
        assert "".join(map(hub.detokenizer(frozenset({mark})).feed, ids)) == "a<|im_start|>bc"
    assert "".join(map(hub.detokenizer().feed, ids)) == "abc"
