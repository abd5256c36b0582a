"""A prefix that one engine has computed and another one imports changes no token."""

from __future__ import annotations

from array import array

import pytest

from scheduler.engine.mlx.kv.transfer_codec import TransferCodec
from scheduler.engine.prefix.prefix_file import decode_header
from scheduler.link.transfers import CloseTransfer, OpenExport, OpenImport, ReadExport, WriteImport
from tests.contracts.journal import prompt_of
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words

_PROMPT = [token % 300 for token in prompt_of(600, 5)]
_FAMILIES = ["gemma3_text", "mamba2", "qwen3"]
"""Some layers cut, none, all."""


def exported(engine: ReuseEngine, tokens: list[int]) -> tuple[int, bytes, list[bytes]]:
    opened = engine.transfer(OpenExport(1, "", "", "the model", array("I", tokens)))
    count = decode_header(opened.data).records
    records = [engine.transfer(ReadExport(1)).data for _ in range(count)]
    engine.turn([CloseTransfer(1)])
    return opened.tokens, opened.data, records


def imported(engine: ReuseEngine, tokens: list[int], header: bytes, records: list[bytes]) -> str:
    reply = engine.transfer(OpenImport(2, "", "", "the model", array("I", tokens), header, 0.0))
    for record in records:
        if not reply.refusal:
            reply = engine.transfer(WriteImport(2, record))
    engine.turn([CloseTransfer(2)])
    return reply.refusal


@pytest.mark.parametrize("family", _FAMILIES)
def test_an_imported_prefix_changes_no_token(family: str) -> None:
    """Greedy answers behind it are those of mlx-lm's own loop, for the prompt itself and for one that goes
    on; nothing of it is computed again. With layers that can be cut, with windows and with states."""
    first = engine_of(family, prefill_chunk_tokens=64)
    first.ask(first.submit([*_PROMPT, *words(20, 2)], boundaries=(600,)))
    count, header, records = exported(first, _PROMPT)
    assert count == 600
    second = engine_of(family, prefill_chunk_tokens=64)
    assert imported(second, _PROMPT, header, records) == ""
    (again,) = second.ask(second.submit([*_PROMPT, *words(20, 2)], boundaries=(600,)))
    assert again.cached == 600
    (branch,) = second.ask(second.submit([*_PROMPT, *words(9, 4)], boundaries=(600,)))
    assert branch.cached == 600


@pytest.mark.parametrize(("other", "family"), [("deepseek_v3", "qwen3"), ("gemma3_text", "mamba2")])
def test_another_models_prefix_is_refused(other: str, family: str) -> None:
    """Also a forged file, whose identity and checksums are right: the sizes are not this model's."""
    first = engine_of(other, prefill_chunk_tokens=64)
    assert first.backend.transfers is not None
    codec = first.backend.transfers._codec
    assert isinstance(codec, TransferCodec)
    codec._identity = {"dtype": "float32", "software": family}
    first.ask(first.submit(_PROMPT, boundaries=(590,)))
    count, header, records = exported(first, _PROMPT)
    second = engine_of(family, prefill_chunk_tokens=64)
    assert "not this model's" in imported(second, _PROMPT[:count], header, records)
    assert second.backend.prefixes is not None
    assert second.backend.prefixes.held_tokens == 0
    (fresh,) = second.ask(second.submit(_PROMPT))
    assert fresh.cached == 0
