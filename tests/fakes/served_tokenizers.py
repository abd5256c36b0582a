"""A small tokenizer of each kind that models have, with BOS, EOS and turn marks, as a folder that is served.

Each reads every text: the vocabulary has all bytes, or all letters of `TEXTS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from scheduler.prompt.tokenizer import HubTokenizer

TEXTS = (
    "The quick brown fox reads. The reads reads a naïve café, zażółć gęślą jaźń!",
    "def f(x): return x\n\tagain yes no 123 444 Hello, how are you? 你好，世界 🦊",
)
SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|system|>", "<|assistant|>", "<|tool|>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TEMPLATE = (
    "<s>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _tekken() -> Tokenizer:
    """Mistral's, as some conversions have it: bytes, with SentencePiece's decoder."""
    tokenizer = _byte_level()
    tokenizer.decoder = _llama_decoder()
    return tokenizer


def _llama_decoder() -> Any:
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(parts)


def _pieces(normalizer: Any, decoder: Any) -> Tokenizer:
    """SentencePiece's BPE with tokens for bytes: trained on text in which spaces are its letter."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=160, show_progress=False))
    made = json.loads(trained.to_str())["model"]
    tokens = [*SPECIAL, *BYTES, *sorted(made["vocab"], key=made["vocab"].__getitem__)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    merges = [tuple(merge) for merge in made["merges"]]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoder
    return tokenizer


def _llama() -> Tokenizer:
    prepend = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    return _pieces(normalizers.Sequence(prepend), _llama_decoder())


def _gemma() -> Tokenizer:
    """No space before a text, and none taken away."""
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return _pieces(normalizers.Replace(" ", "▁"), decoders.Sequence(parts))


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    trainer = trainers.UnigramTrainer(
        vocab_size=200, unk_token="<unk>", special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    made = json.loads(tokenizer.to_str())
    made["model"]["byte_fallback"] = True
    made["model"]["vocab"] += [[byte, -20.0] for byte in BYTES]
    return Tokenizer.from_str(json.dumps(made))


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "byte-level": _byte_level,
    "tekken": _tekken,
    "llama": _llama,
    "gemma": _gemma,
    "unigram": _unigram,
}


@cache
def _trained(kind: str) -> str:
    return KINDS[kind]().to_str()  # Unigram's trainer is another one each time.


def write_tokenizer(
    folder: Path, kind: str, *, template: Any = TEMPLATE, bos: bool = True, settings: Mapping[str, Any] = {}
) -> Tokenizer:
    """Write a tokenizer and its configuration; `bos`: it puts `<s>` before a text."""
    tokenizer = Tokenizer.from_str(_trained(kind))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    if bos:
        start = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", start)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    written = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        **({} if template is None else {"chat_template": template}),
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    return tokenizer


def tokenizer_of(kind: str, *, bos: bool = True) -> tuple[HubTokenizer, Tokenizer]:
    """Return it as the service loads it, and the library's own."""
    return _loaded(kind, bos)


@cache
def _loaded(kind: str, bos: bool) -> tuple[HubTokenizer, Tokenizer]:
    with TemporaryDirectory() as folder:
        library = write_tokenizer(Path(folder), kind, bos=bos)
        return HubTokenizer(Path(folder)), library
