"""The tokenizer and the chat template of Penstock's own models, with clients' requests."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from scheduler.models.random_qwen3 import (
    EOS_TOKEN_ID,
    FIRST_ADDED_TOKEN_ID,
    PAD_TOKEN_ID,
    TINY,
    TOKENIZER_FOLDER,
)

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Added but not special, as in Qwen3: they survive `skip_special_tokens`, so parsers see them."""

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TOKENIZER_FOLDER)


def render(tokenizer: Any, *messages: dict[str, Any], **options: Any) -> str:
    options = {"add_generation_prompt": True} | options
    text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    return text


def test_it_loads_as_a_fast_tokenizer_with_exactly_8192_tokens(tokenizer: Any) -> None:
    """The ids that the model's config names are those of the tokenizer, and the added tokens come last."""
    assert tokenizer.is_fast
    assert len(tokenizer) == TINY.vocabulary == 8192
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", EOS_TOKEN_ID)
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<|endoftext|>", PAD_TOKEN_ID)
    added = tokenizer.convert_tokens_to_ids([*SPECIAL_TOKENS, *MARKUP_TOKENS])
    assert added == list(range(FIRST_ADDED_TOKEN_ID, TINY.vocabulary))
    assert (TOKENIZER_FOLDER / "tokenizer.json").stat().st_size < 600_000


def test_a_conversation_is_rendered_as_chatml(tokenizer: Any) -> None:
    """System, user and assistant turns, then the opening of the next answer."""
    text = render(
        tokenizer,
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
        {"role": "user", "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "now?"}]},
    )
    assert text == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nHow now?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_thinking_can_be_switched_off(tokenizer: Any) -> None:
    """The answer begins with an empty reasoning block; by default the model may think."""
    question = {"role": "user", "content": "Hi"}
    assert render(tokenizer, question, enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    assert render(tokenizer, question, enable_thinking=True).endswith("assistant\n")


@pytest.mark.parametrize("arguments", [{"city": "Paris"}, '{"city": "Paris"}'])
def test_tools_calls_and_their_results_are_rendered_as_hermes_does(tokenizer: Any, arguments: object) -> None:
    """Definitions in the system turn; results of one round in one user turn; arguments in either form."""
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    text = render(
        tokenizer,
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "reasoning_content": "ask", "tool_calls": [call, call]},
        {"role": "tool", "content": "sun"},
        {"role": "tool", "content": [{"type": "text", "text": "rain"}]},
        tools=[WEATHER],
    )
    system, _, turns = text.partition("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nBe kind.\n\n# Tools\n\n")
    assert '<tools>\n{"type": "function", "function": {"name": "weather"' in system
    called = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert turns == (
        "<|im_start|>user\nWeather?<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nask\n</think>\n\n{called}\n{called}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsun\n</tool_response>\n"
        "<tool_response>\nrain\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
