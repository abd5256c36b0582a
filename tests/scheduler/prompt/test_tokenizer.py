"""The tokenizer's contract, on the real one and on the fake."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from scheduler.errors import InvalidRequest, StartupError, TemplateFailed
from scheduler.models.random_qwen3 import TOKENIZER_FOLDER
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt
from tests.contracts.check_tokenizer import check_tokenizer
from tests.fakes.byte_tokenizer import ByteTokenizer


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


def test_a_text_that_the_library_panics_at_is_the_clients_error() -> None:
    """Its expressions give up at this number of spaces; the panic is not an Exception, and would end the
    server."""
    before = hub().encode("Hi there")
    with pytest.raises(InvalidRequest, match=r"tokenizer fails on this text: .*retry-limit"):
        hub().encode(" " * 10_100_000)
    assert hub().encode("Hi there") == before


def test_a_folder_without_a_tokenizer_that_is_read_is_refused(tmp_path: Path) -> None:
    """By name, to the operator, before anything else is loaded: also one whose tokens no table reads."""
    with pytest.raises(StartupError, match=str(tmp_path)):
        HubTokenizer(tmp_path)
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(StartupError, match="neither in bytes nor as SentencePiece does"):
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
