"""A model's tokenizer: text to token ids and back, and its chat template. Without MLX."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from scheduler.answer.answer_format import (
    GENERIC,
    Layout,
    answer_format,
    template_type,
)
from scheduler.answer.detokenizer import (
    ByteTable,
    Detokenizer,
    byte_level,
    sentence_piece,
)
from scheduler.errors import InvalidRequest, StartupError, TemplateFailed
from scheduler.prompt import chat_template, generic_tools
from scheduler.prompt.chat_template import Renderer
from scheduler.prompt.history_forms import PROBE_TOOL, paired
from scheduler.prompt.spelling import Spelling, spelling_of, with_plain_decoder
from scheduler.prompt.template_reading import TemplateReading, fitted, reading_of
from scheduler.prompt.written_marks import WrittenMarks, ends_of_turn, found, marks_of
from scheduler.request import ChatPrompt
from scheduler.shared.folder.reading import GENERATION_CONFIG, named_ends, read_json
from scheduler.shared.messages import GrammarTokenizer

_BATCH_TEXTS = 4096
"""The library converts a batch's texts and frees its results with the GIL: 48 ms for 62,000 texts at once."""


class HubTokenizer:
    """A fast tokenizer in the Hugging Face format, with its chat template and its model's answer format."""

    def __init__(
        self,
        folder: Path,
        *,
        model_type: str = "",
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
    ) -> None:
        """Raise StartupError if the folder has no usable tokenizer."""
        self._tokenizer = _loaded(folder)
        templates = _templates(self._tokenizer.chat_template, folder)
        self._backend: Any = self._tokenizer.backend_tokenizer
        # A last training's, or a last call's: `save_pretrained` writes them into the file.
        self._backend.no_truncation()
        self._backend.no_padding()
        vocabulary = self._tokenizer.get_vocab()
        self.vocabulary = 1 + max(vocabulary.values(), default=-1)
        """One more than the largest token id. The model may have more ids, without text."""
        self._special_ids = {
            token_id: str(added)
            for token_id, added in self._backend.get_added_tokens_decoder().items()
            if added.special
        }
        self.special_token_ids = frozenset(self._special_ids)
        """Tokens that no plain text contains, such as the templates' turn marks."""
        # The reading of the format asks for it several times, and the library makes a new one each time.
        vars(self._tokenizer)["get_vocab"] = lambda: vocabulary
        # The one that is used with tools shows what calls look like.
        named = templates if isinstance(templates, dict) else {}
        self._tokenizer.chat_template = named.get("tool_use", named.get("default", templates))
        self.answer_format = answer_format(
            self._tokenizer, model_type, tool_parser=tool_parser, reasoning_parser=reasoning_parser
        )
        """How the model writes reasoning and tool calls."""
        self._tokenizer.chat_template = templates
        self.template_reading, self._marks = TemplateReading(), WrittenMarks()
        self._renderer: Renderer | None = None
        render = chat_template.renderer(self._tokenizer, template_type(self._tokenizer, model_type))
        if render is not None:
            self._renderer = self._read_template(render, has_other="tool_use" in named)
        if tool_parser == "auto" and self._lacks_tools():
            self.answer_format = self.answer_format.with_generic_tools()
        self._is_generic = self.answer_format.tool_calls == GENERIC
        self._system_turn = (
            self._is_generic and self._renderer is not None and generic_tools.has_system_turn(self._renderer)
        )
        files = (read_json(folder / name) or {} for name in ("config.json", GENERATION_CONFIG))
        eos = self._tokenizer.eos_token_id
        ends = named_ends(*files) | (set() if eos is None else {int(eos)})
        tokens = {token: token_id for token_id, token in self._special_ids.items()}
        self.eos_token_ids = ends | ends_of_turn(self._marks, self.answer_format.layout, tokens, ends)
        """The tokens that end an answer: those that files name, and the template's own."""
        self.spelling = spelling_of(self._backend, vocabulary)
        del vars(self._tokenizer)["get_vocab"]
        self._opening: Callable[[int], bytes] = cache(self._spelled_first)
        self._middle = self._byte_table(frozenset(self._special_ids.values()))
        self._byte_tables: dict[frozenset[str], ByteTable] = {}
        self._shown: Callable[[frozenset[str]], frozenset[str]] = cache(self._special_in)

    def _read_template(self, render: Renderer, *, has_other: bool) -> Renderer:
        """Return the renderer that passes what the template takes. `has_other`: with tools there is another
        one."""
        notation = self.answer_format.notation
        reading = tooled = reading_of(render, notation=notation)
        if has_other:
            tooled = reading_of(render, (PROBE_TOOL,), notation)
        self.template_reading = replace(reading, forms=tooled.forms, forgotten=tooled.forgotten)
        without, with_tools = fitted(render, reading), fitted(render, tooled)
        self._marks = marks_of(with_tools, apart=any(form.moves_text for form in tooled.forms))
        return lambda prompt: (with_tools if prompt.offered_tools else without)(prompt)

    @property
    def found(self) -> str:
        """Which notations and ends of turn were found, and what is not read, as one line."""
        ends = (self._backend.id_to_token(token) for token in sorted(self.eos_token_ids))
        return found(self.answer_format, self._marks, [end for end in ends if end is not None])

    @property
    def has_chat_template(self) -> bool:
        return self._renderer is not None

    @property
    def template_verdicts(self) -> tuple[str, ...]:
        """What is unusual in what the chat template writes, for an operator."""
        reasons = self.answer_format.reasoning_notation != "none"
        return tuple(self.template_reading.verdicts(generic=self._is_generic, reasons=reasons))

    def render(self, prompt: ChatPrompt) -> str:
        """Return the prompt text of a conversation, up to the assistant's turn (or within it). Raise
        TemplateFailed."""
        if self._renderer is None:
            raise TemplateFailed("this model has no chat template", param="messages")
        try:
            prompt = replace(prompt, messages=paired(prompt.messages))
            if self._is_generic:
                prompt = generic_tools.rewritten(prompt, system_turn=self._system_turn)
            return self._renderer(prompt)
        except Exception as error:  # A template is a program and may raise anything; only this request fails.
            raise TemplateFailed(
                f"the model's chat template does not accept these messages: {error}", param="messages"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return token ids; special tokens in the text are recognised, none are added. Thread-safe. Raise
        InvalidRequest for a text that the tokenizer fails on."""
        return self._encode([text], special=False)[0]

    @property
    def cuts(self) -> Mapping[str, int]:
        """Return the added tokens at which the tokenizer cuts a text before it does anything else, with their
        ids. Empty if it is not known to do so."""
        # The others are looked for in the text between these, after the normalizer has changed it.
        first = {
            token_id: added
            for token_id, added in self._backend.get_added_tokens_decoder().items()
            if not added.normalized
        }
        if any(added.lstrip or added.single_word for added in first.values()):
            return {}  # They depend on, or take away, what stands before them.
        return {added.content: token_id for token_id, added in first.items()}

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return `encode` of each text; faster than one after another."""
        return self._encode(texts, special=False)

    def encode_whole(self, text: str) -> list[int]:
        """Return the ids of `encode` with those that the tokenizer puts around a text: the last token of an
        embedder, for example."""
        return self._encode([text], special=True)[0]

    def _encode(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        # encode_batch_fast gives up the GIL, encode holds it (17 ms for 10k tokens).
        try:
            ids: list[list[int]] = []
            for start in range(0, len(texts), _BATCH_TEXTS):
                batch = list(texts[start : start + _BATCH_TEXTS])
                found = self._backend.encode_batch_fast(batch, add_special_tokens=special)
                ids.extend(one.ids for one in found)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            # A panic of the Rust library is not an Exception and would end the server. The regular
            # expressions of many vocabularies panic at ten million spaces.
            raise InvalidRequest(f"the model's tokenizer fails on this text: {error}") from error
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a prompt's ids, special tokens spelled out. Thread-safe."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))

    def token_bytes(self, token_id: int) -> bytes:
        """Return one token as UTF-8, special ones spelled out. It may be part of a character, and it includes
        the space that it has in the middle of a text. Empty for ids without a token."""
        return self._middle[token_id]

    def opening_bytes(self, token_id: int) -> bytes:
        """Return the same for a token that begins a text: it may lack its space."""
        return self._opening(token_id)

    def detokenizer(self, spelled: frozenset[str] = frozenset(), *, begun: bool = False) -> Detokenizer:
        """Return a new detokenizer; cheap. Special tokens give no text, except parts of the marks `spelled`.
        `begun`: whether its text continues another one."""
        # There are few sets of marks, and one table serves all requests with the same set.
        shown = self._shown(spelled)
        if shown not in self._byte_tables:
            self._byte_tables[shown] = self._byte_table(shown)
        table = self._byte_tables[shown]
        opening = None if self.spelling is Spelling.BYTE_LEVEL else self._opening
        return Detokenizer(table, opening, begun=begun)

    def _special_in(self, marks: frozenset[str]) -> frozenset[str]:
        special = self._special_ids.values()
        return frozenset(token for token in special if any(token in mark for mark in marks))

    def to_json(self) -> str:
        """Return the whole tokenizer as `tokenizer.json` text: megabytes, built at each call."""
        written = str(self._backend.to_str())
        return written if self.spelling is not Spelling.PIECES else with_plain_decoder(written)

    def for_grammars(self) -> GrammarTokenizer:
        """Return what engines need to mask tokens. Takes as long as `to_json`, and as much again."""
        return GrammarTokenizer(zlib.compress(self.to_json().encode(), 1), tuple(sorted(self.eos_token_ids)))

    def _lacks_tools(self) -> bool:
        """Return whether there is a template, and it writes no tools, or writes them for an unknown
        syntax."""
        if self._renderer is None or self.answer_format.layout is not Layout.MARKS:
            return False
        # It may mention calls, so that a parser is inferred, and write no tools.
        lacks = self.answer_format.tools is None or "tool" in self.template_reading.dropped
        return lacks or not generic_tools.knows_tools(self._renderer)

    def _spelled_first(self, token_id: int) -> bytes:
        spelled = self._middle[token_id]
        if self.spelling is Spelling.BYTE_LEVEL or (not spelled.isascii() and len(spelled) == 1):
            return spelled  # A byte that is only part of a character.
        return self.decode([token_id]).encode("utf-8", "replace") if spelled else b""

    def _byte_table(self, shown: frozenset[str]) -> ByteTable:
        hidden = {token_id for token_id, token in self._special_ids.items() if token not in shown}
        spelled = self._backend.id_to_token
        read = byte_level if self.spelling is Spelling.BYTE_LEVEL else sentence_piece
        return ByteTable(lambda token_id: None if token_id in hidden else spelled(token_id), read)


def _loaded(folder: Path) -> Any:
    """Return transformers' tokenizer, around the library's own reading of `tokenizer.json`: a class of
    transformers would build it anew, with other parts than the file's. Raise StartupError."""
    # PyTorch is not needed here, so neither is transformers' advice to install it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # Imported late: it takes a second, and scripted tests do not need it.
    from tokenizers import Tokenizer as LibraryTokenizer
    from transformers import PreTrainedTokenizerFast

    if not (file := folder / "tokenizer.json").exists():
        raise StartupError(
            f"--model: {folder} holds no tokenizer.json: download it again, or let transformers make one of"
            " what is there (AutoTokenizer.from_pretrained, save_pretrained)"
        )
    try:
        # None asks on a terminal whether to run the folder's own code.
        made: Any = PreTrainedTokenizerFast.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        library = LibraryTokenizer.from_file(str(file))
    except Exception as error:  # Both libraries raise whatever their parsers raise.
        reason = " ".join(str(error).split())  # transformers writes several lines
        raise StartupError(f"--model: the tokenizer in {folder} cannot be loaded: {reason}") from error
    theirs, known = made.backend_tokenizer.get_added_tokens_decoder(), library.get_added_tokens_decoder()
    # What tokenizer_config.json names beside the file; it changes nothing of what the file has.
    library.add_tokens([token for at, token in sorted(theirs.items()) if at not in known])
    made._tokenizer = library
    if not library.num_special_tokens_to_add(is_pair=False):
        # DeepSeek's file puts nothing before a text, which its makers' class did; transformers 5 forgets it.
        config = read_json(folder / "tokenizer_config.json") or {}
        made.add_bos_token = config.get("add_bos_token") is True
        made.add_eos_token = config.get("add_eos_token") is True
    return made


def _templates(given: Any, folder: Path) -> Any:
    """Return the tokenizer's template, or else the one that the model's processor has; several by their
    names. Raise StartupError."""
    for file in ("chat_template.json", "processor_config.json"):
        if given is None and (content := read_json(folder / file)) is not None:
            given = content.get("chat_template")
    named = {one["name"]: one["template"] for one in given} if isinstance(given, list | tuple) else given
    if isinstance(named, dict) and "default" not in named:
        raise StartupError(
            f"--model: {folder} has chat templates named {', '.join(sorted(named))}, and none named default"
        )
    return named
