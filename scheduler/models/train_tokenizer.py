"""Regenerate `tokenizer/tokenizer.json`: `python -m scheduler.models.train_tokenizer [FILE]`.

A byte-level BPE of exactly 8192 tokens, built as Qwen builds its own (NFC, its pre-tokeniser's expression,
nine added tokens at the end), learned from text of every Python installation: the manual's topics and the
standard library's docstrings and sources. That text differs between Python versions, so another version
learns other merges: **the committed file is the truth**, and every cached model contains its digest. Nothing
at run time imports this module.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped, unused-ignore]

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 8192
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Added but not special, as in Qwen3: they survive `skip_special_tokens`, so parsers see them."""

TOKENIZER_FILE = Path(__file__).parent / "tokenizer" / "tokenizer.json"

_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PROSE_REPEATS = 4
"""English is the smaller part of a standard library; without more weight, merges would go to code."""

_SOURCE_CHARACTERS = 400_000
_CHAT_LINES = (
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}\n',
    '{"type": "function", "function": {"name": "search", "description": "Search the web", "parameters": '
    '{"type": "object", "properties": {"query": {"type": "string", "description": "What to search for"}}, '
    '"required": ["query"]}}}\n',
    '[{"id": 1, "role": "user", "content": "hello"}, {"id": 2, "role": "assistant", "content": null}]\n',
    "# Title\n\n## Section\n\n- **First** item\n- `second` item\n\n1. Read the file.\n2. Run the tests.\n\n"
    "```python\nprint('hello')\n```\n\n| name | value |\n|---|---|\n| a | 1 |\n\n> A quotation.\n\n",
    "system\nYou are a helpful assistant.\nuser\nHello! How are you?\nassistant\nI am fine, thank you. "
    "What can I help you with today?\n",
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>\n</tools>\n\nFor each function call, "
    "return a json object with function name and arguments.\n",
)


def train() -> Tokenizer:
    """Return the tokenizer learned on this installation; the same on every run of one Python version."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_QWEN_PATTERN), behavior="isolated"), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS) - len(MARKUP_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP_TOKENS])
    return tokenizer


def corpus() -> Iterator[str]:
    """Return the training text, in an order that does not depend on the file system."""
    for _ in range(_PROSE_REPEATS):
        yield from (topics[name] for name in sorted(topics))
        yield from _CHAT_LINES * 10
    room = _SOURCE_CHARACTERS
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = path.read_text(encoding="utf-8")
        for docstring in _docstrings(source):
            yield from [docstring] * _PROSE_REPEATS
        if room > 0:
            yield source[:room]
            room -= len(source)


def _docstrings(source: str) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            yield docstring


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TOKENIZER_FILE
    tokenizer = train()
    assert tokenizer.get_vocab_size() == VOCABULARY
    target.write_text(tokenizer.to_str(pretty=False), encoding="utf-8")


if __name__ == "__main__":
    main()
