"""The tokenizer's contract, on the real one and on the fake."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from scheduler.errors import InvalidRequest, StartupError, TemplateFailed
from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt
from tests.contracts.check_tokenizer import check_tokenizer, read
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.embedder_folder import END, write_ending_tokenizer


@cache
def hub() -> HubTokenizer:
    return HubTokenizer(TOKENIZER_FOLDER)


def test_the_fake_tokenizer_keeps_the_contract() -> None:
    """Ids that are bytes."""
    check_tokenizer(ByteTokenizer(), [{"role": "user", "content": "refuse me"}])


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param([{"role": "critic", "content": "Hm."}], id="the template raises"),
        pytest.param([{"role": "user", "content": [{"type": "image_url"}]}], id="a part it cannot read"),
        pytest.param([{"role": "assistant", "content": "", "tool_calls": 7}], id="nonsense it trips over"),
    ],
)
def test_the_hub_tokenizer_keeps_the_contract(refused: list[dict[str, object]]) -> None:
    """The committed folder, through transformers, with the messages that its Jinja template rejects."""
    check_tokenizer(hub(), refused)


def test_more_texts_than_a_batch_are_encoded_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"text {number}" for number in range(7)]
    whole = hub().encode_all(texts)
    assert whole == [hub().encode(text) for text in texts]
    monkeypatch.setattr("scheduler.prompt.tokenizer._BATCH_TEXTS", 3)
    assert hub().encode_all(texts) == whole


def test_special_tokens_in_the_text_are_recognised() -> None:
    """A rendered prompt is text: its markers must become the model's own tokens, and none are added."""
    assert hub().has_chat_template
    ids = hub().encode("<|im_start|>user\n")
    assert read(hub(), ids) == "user\n"
    assert hub().encode("<|im_start|>") == ids[:1]


def test_no_special_token_is_put_before_the_text(tmp_path: Path) -> None:
    """The template writes the beginning of the sequence if its model needs one; two would be wrong."""
    library = Tokenizer.from_file(str(TOKENIZER_FOLDER / "tokenizer.json"))
    beginning = ("<|endoftext|>", library.encode("<|endoftext|>").ids[0])
    library.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[beginning])
    assert library.encode("Hi").ids[0] == beginning[1]
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    assert HubTokenizer(tmp_path).encode("Hi") == hub().encode("Hi")


def test_a_whole_text_has_the_end_that_its_tokenizer_puts_there(tmp_path: Path) -> None:
    """As Qwen3-Embedding's, whose vector is that of this token."""
    tokenizer = HubTokenizer(write_ending_tokenizer(tmp_path))
    assert tokenizer.encode_whole("Hi") == [*hub().encode("Hi"), END]
    assert tokenizer.encode_whole("") == [END]
    assert tokenizer.encode("Hi") == hub().encode("Hi")


def test_a_text_that_the_library_panics_at_is_the_clients_error() -> None:
    """Its expressions give up at this number of spaces; the panic is not an Exception, and would end the
    server."""
    before = hub().encode("Hi there")
    with pytest.raises(InvalidRequest, match=r"tokenizer fails on this text: .*retry-limit"):
        hub().encode(" " * 10_100_000)
    assert hub().encode("Hi there") == before


def test_template_options_reach_the_template() -> None:
    """`enable_thinking` and what else a model's template knows."""
    messages = ({"role": "user", "content": "Hi"},)
    assert hub().render(ChatPrompt(messages, {"enable_thinking": False})) == hub().render(
        ChatPrompt(messages)
    ) + ("<think>\n\n</think>\n\n")


def test_content_in_parts_is_joined_by_the_template() -> None:
    """The list form of content, as OpenAI's clients send it."""
    parts = [{"type": "text", "text": "How "}, {"type": "text", "text": "now?"}]
    whole = hub().render(ChatPrompt(({"role": "user", "content": "How now?"},)))
    assert hub().render(ChatPrompt(({"role": "user", "content": parts},))) == whole


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """By name, to the operator, before anything else is loaded."""
    with pytest.raises(StartupError, match=str(tmp_path)):
        HubTokenizer(tmp_path)


def test_a_model_without_a_chat_template_says_so(tmp_path: Path) -> None:
    """It starts, since completions need none; a conversation is refused as the client's error."""
    (tmp_path / "tokenizer.json").write_bytes((TOKENIZER_FOLDER / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    tokenizer = HubTokenizer(tmp_path)
    assert not tokenizer.has_chat_template
    assert tokenizer.eos_token_ids == frozenset()
    with pytest.raises(TemplateFailed, match="no chat template"):
        tokenizer.render(ChatPrompt(({"role": "user", "content": "Hi"},)))


def test_a_vocabulary_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes 0.3 s for one of 260,000 tokens, and mlx-lm alone asks for it several times."""
    listed = []
    original = PreTrainedTokenizerFast.get_vocab

    def get_vocab(self: PreTrainedTokenizerFast) -> dict[str, int]:
        listed.append(self)
        return original(self)

    monkeypatch.setattr(PreTrainedTokenizerFast, "get_vocab", get_vocab)
    AutoTokenizer.from_pretrained(TOKENIZER_FOLDER)
    by_library = len(listed)
    assert HubTokenizer(TOKENIZER_FOLDER).vocabulary == hub().vocabulary
    assert len(listed) == 2 * by_library + 1
