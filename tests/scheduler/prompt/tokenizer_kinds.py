"""Tokenizers of every make, trained here on a few lines: what real families differ in, as their libraries
build it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

MARKS = ("<|im_start|>", "<|im_end|>", "<|im_", "<think>", "</think>", "[INST]")
TEXT = [
    "The agent reads a file, writes a function and runs its tests again.",
    "def queue(self) -> list[int]:\n    return [one for one in self._waiting if one.ready]\n",
    "caf\u00e9 na\u00efve 1234567890 \u4f60\u597d\u4e16\u754c \U0001f680\U0001f469\u200d\U0001f680 e\u0301",
    'user\nassistant\nsystem {"name": "read", "arguments": {"path": "/tmp/x"}}',
] * 8
_LLAMA_3 = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Kind:
    """The part of a tokenizer that pieces need."""

    def __init__(self, library: Tokenizer) -> None:
        self.library = library

    @property
    def cuts(self) -> Mapping[str, int]:
        added = self.library.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if not token.normalized}

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self.library.encode_batch_fast(list(texts), add_special_tokens=False)]

    @classmethod
    def of_file(cls, path: Path) -> Kind:
        return cls(Tokenizer.from_file(str(path)))


def _bpe(library: Tokenizer, *, bytes_: bool = True) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet() if bytes_ else []
    library.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    return library


def _gpt_2() -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _bpe(library)


def _prefix_space() -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return _bpe(library)


def _llama_3() -> Tokenizer:
    library = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(_LLAMA_3, "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    return _bpe(library)


def _qwen() -> Tokenizer:
    library = _llama_3()
    library.normalizer = normalizers.NFC()
    return library


def _llama_2() -> Tokenizer:
    """The old way: a space before each piece, by the normalizer; unknown characters by their bytes."""
    library = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    fallback = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    library.train_from_iterator(TEXT[:1], trainers.BpeTrainer(vocab_size=500, special_tokens=fallback))
    library.decoder = decoders.ByteFallback()
    return library


def _metaspace(scheme: str) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        library = Tokenizer(models.BPE(unk_token="<unk>"))
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"])
        library.train_from_iterator(TEXT, trainer)
        return library

    return make


def _unigram() -> Tokenizer:
    library = Tokenizer(models.Unigram())
    library.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"])
    library.train_from_iterator(TEXT, trainer)
    return library


def _word_piece() -> Tokenizer:
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]"])
    library.train_from_iterator(TEXT, trainer)
    return library


_MAKES: dict[str, Callable[[], Tokenizer]] = {
    "gpt-2": _gpt_2,
    "byte level with a space first": _prefix_space,
    "llama 3": _llama_3,
    "qwen": _qwen,
    "llama 2": _llama_2,
    "metaspace, always": _metaspace("always"),
    "metaspace, first": _metaspace("first"),
    "metaspace, never": _metaspace("never"),
    "unigram": _unigram,
    "word piece": _word_piece,
}
KINDS = tuple(_MAKES)


@cache
def kind(name: str) -> Kind:
    """One of KINDS, with `MARKS` as special tokens, which overlap, and one that the normalizer may change."""
    library = _MAKES[name]()
    library.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    library.add_tokens([AddedToken("<tool_call>", normalized=True)])
    return Kind(library)
