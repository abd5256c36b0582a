"""Rendering of conversations: a template's input, templates that are programs, the order of messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from scheduler.errors import TemplateFailed
from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.prompt.chat_template import alternating, renderer, strict
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, Message, Reasoning, Tool, ToolChoice
from tests.fakes.served_tokenizers import write_tokenizer

TOOL = Tool("get_time", "The time", {"type": "object", "properties": {"zone": {"type": "string"}}})
CALL: dict[str, Any] = {
    "id": "1",
    "type": "function",
    "function": {"name": "get_time", "arguments": {"zone": "UTC"}},
}
TURN: tuple[Message, ...] = (
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "content": "12:00", "tool_call_id": "1"},
)


class Spy:
    """A transformers tokenizer that only records its calls."""

    chat_template: str | None = "x"

    def __init__(self, **init_kwargs: Any) -> None:
        self.init_kwargs = init_kwargs
        self.asked: dict[str, Any] = {}

    def apply_chat_template(self, messages: list[Message], **options: Any) -> str:
        self.asked = options
        return "rendered"


def asked(prompt: ChatPrompt) -> dict[str, Any]:
    spy = Spy()
    render = renderer(spy, None)
    assert render is not None
    assert render(prompt) == "rendered"
    return spy.asked


def test_reasoning_is_switched_by_the_names_that_templates_know() -> None:
    """No option if the client sets none; and the client's own template options win."""
    assert "enable_thinking" not in asked(ChatPrompt(TURN))
    off = asked(ChatPrompt(TURN, reasoning=Reasoning(enabled=False)))
    assert (off["enable_thinking"], off["thinking"]) == (False, False)
    hard = ChatPrompt(TURN, {"enable_thinking": False}, reasoning=Reasoning(True, "high"))
    assert asked(hard)["reasoning_effort"] == "high"
    assert asked(hard)["enable_thinking"] is False


def test_tools_are_offered_unless_none_may_be_called() -> None:
    """A template tests `if tools`, so an empty list is passed as None."""
    assert asked(ChatPrompt(TURN, tools=(TOOL,)))["tools"] == [TOOL.definition()]
    assert asked(ChatPrompt(TURN, tools=(TOOL,), tool_choice=ToolChoice.NONE))["tools"] is None
    assert asked(ChatPrompt(TURN))["tools"] is None


@pytest.mark.parametrize("name", ["tokenize", "self"])
def test_an_option_with_the_name_of_an_argument_fails_the_request(name: str) -> None:
    """It is not taken for the argument."""
    with pytest.raises(TemplateFailed):
        HubTokenizer(TOKENIZER_FOLDER).render(ChatPrompt(TURN, {name: "x"}))


@pytest.mark.parametrize(("thinking", "end"), [(None, "<think>"), (True, "<think>"), (False, "</think>")])
def test_deepseeks_template_is_mlx_lms_program(thinking: bool | None, end: str) -> None:
    """No Jinja: the folder names it, and calls are written as the model's parser reads them."""
    spy = Spy(chat_template_type="deepseek_v32")
    render = renderer(spy, "deepseek_v32")
    assert render is not None
    text = render(ChatPrompt(TURN, tools=(TOOL,), reasoning=Reasoning(thinking)))
    assert '<｜DSML｜invoke name="get_time">' in text
    assert '<｜DSML｜parameter name="zone" string="true">UTC</｜DSML｜parameter>' in text
    assert text.endswith(end)
    assert spy.asked == {}


def test_a_program_writes_tools_where_there_is_no_system_message(tmp_path: Path) -> None:
    """DeepSeek's writes them in one, so it gets an empty one; its own notation is chosen by itself."""
    library = write_tokenizer(
        tmp_path, "byte-level", template=None, settings={"chat_template_type": "deepseek_v32"}
    )
    library.add_tokens([AddedToken("｜DSML｜", normalized=False)])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HubTokenizer(tmp_path)
    assert (tokenizer.answer_format.tool_calls, tokenizer.answer_format.call_notation) == ("native", "dsml")
    without, system = tokenizer.render(ChatPrompt(TURN[1:], tools=(TOOL,))), TURN[0]["content"]
    assert '"name": "get_time"' in without
    assert tokenizer.render(ChatPrompt(TURN, tools=(TOOL,))).replace(system, "") == without
    assert "## Tools" not in tokenizer.render(ChatPrompt(TURN[1:2]))


def test_answers_in_a_row_are_one_with_all_thoughts_and_calls() -> None:
    """Two agents may answer in turn, and one in two messages."""
    messages: tuple[Message, ...] = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        {"role": "assistant", "content": "", "tool_calls": [1]},
        {"role": "assistant", "content": "c", "tool_calls": [2]},
    )
    joined = {"content": "b\n\nc", "reasoning_content": "hm", "tool_calls": [1, 2]}
    assert strict(messages) == (messages[0], {"role": "assistant", **joined})


def test_many_turns_of_one_speaker_are_joined_once() -> None:
    """Joined one by one, 80,000 of them would copy their text as often: minutes."""
    (turn,) = alternating([{"role": "user", "content": "x" * 50}] * 80_000)
    assert turn["content"].count("\n\n") == 79_999
