"""Render, tokenize and check a request before it is queued."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import assert_never

import msgspec
import numpy as np

from scheduler.answer.answer_format import PLAIN, AnswerFormat, Layout
from scheduler.answer.assembly import Assembly
from scheduler.answer.pipeline import AnswerPipeline
from scheduler.answer.prompt_logprobs import PromptLogprobs
from scheduler.answer.stop_strings import WantedStrings
from scheduler.answer.token_spans import TokenSpans
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.answer.tool_calls.written_call import call_id
from scheduler.config import ThinkingConfig
from scheduler.errors import InvalidRequest, PromptTooLong, SchedulerError, UnsupportedParameter
from scheduler.grammar.answer_grammar import AnswerGrammars, GrammarWriter, HoldCalls
from scheduler.grammar.caches import UnknownGrammar
from scheduler.grammar.trials import GrammarTrials
from scheduler.prefix_estimate import block_hashes
from scheduler.prepared import Prepared
from scheduler.prompt.model_folder import ModelFolder
from scheduler.prompt.thinking_budgets import ThinkingBudgets
from scheduler.prompt.token_pieces import TokenPieces
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.prompt.vector_request import check_dimensions, check_kind, truncated, truncated_length
from scheduler.repetition import Repetition
from scheduler.request import (
    ChatPrompt,
    GenerationRequest,
    Hold,
    Prompt,
    TextPrompt,
    TokenPrompt,
    ToolChoice,
)
from scheduler.shared.adapter_files import salted
from scheduler.shared.messages import Submit, ThinkingBudget
from scheduler.shared.thinking import ThinkingLimit
from scheduler.shared.token_ids import TokenIds, common_run, compact


@dataclass(frozen=True, slots=True)
class _Tokens:
    """A prompt's ids, and what is known of them only while they are made."""

    ids: TokenIds
    opens_reasoning: bool = False
    added: int = 0


PIECES_BYTES = 32 << 20
"""Room for the ids of 8 million tokens: eighty conversations of 100,000."""
_USUAL_CHARACTERS = 16
"""A text with fewer characters a token than this, where 4 are usual, is tokenized whole. Tokenizing takes 100
to 200 bytes for each byte of text: of a longer one no more is tokenized than shows that it cannot fit."""
_CHUNK_CHARACTERS = 8192
CONTINUED_TOKENS = 8
"""Tokens of a prompt with which its continuation is read; a character has at most four."""
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_PROMPT_LOGPROBS = 1 << 18
"""Bound on one client's request: prompt tokens times their alternatives, for each choice. About 20 MB of
JSON."""


def check_prompt_logprobs(prepared: Sequence[Prepared]) -> None:
    """Raise InvalidRequest where one client's request comes to more than MAX_PROMPT_LOGPROBS."""
    entries = sum(
        (one.request.prompt_logprobs + 1) * len(one.submit.prompt) * one.request.choices
        for one in prepared
        if one.request.prompt_logprobs is not None
    )
    if entries > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            f"the prompts' log-probabilities come to {entries} values, of all tokens, alternatives and"
            f" choices; at most {MAX_PROMPT_LOGPROBS} are computed",
            param="logprobs",
        )


class Preparation:
    """Prepares requests with the tokenizer and the configuration of the model."""

    def __init__(
        self,
        tokenizer: HubTokenizer,
        folder: ModelFolder,
        thinking: ThinkingConfig | None = None,
        hold_calls: HoldCalls = "strict",
        pieces_bytes: int = PIECES_BYTES,
        repetition: Repetition | None = None,
        grammar_environment: Mapping[str, str] | None = None,
    ) -> None:
        """Without `thinking`, only requests that name a budget have one. `pieces_bytes` bounds the token ids
        that are kept of parts of prompts; 0 keeps none. `repetition` ends the answers to requests that say
        nothing about it. `grammar_environment`: of the process that writes grammars; without it they are
        written here."""
        self.tokenizer = tokenizer
        self.pieces = TokenPieces(tokenizer.encode_all, tokenizer.cuts, pieces_bytes)
        self.context_tokens = folder.context_tokens
        self._folder = folder
        self._vocabulary = folder.vocabulary or tokenizer.vocabulary
        self._special_token_ids = tokenizer.special_token_ids
        self._eos_token_ids = tuple(sorted(folder.eos_token_ids | tokenizer.eos_token_ids))
        self.grammar_trials = (
            None if grammar_environment is None else GrammarTrials(self._grammar_setup, grammar_environment)
        )
        self._grammars = AnswerGrammars(
            lambda: self.grammar_trials or GrammarWriter(*self._grammar_setup()), hold_calls
        )
        self.thinking = ThinkingBudgets(tokenizer, self._vocabulary, thinking or ThinkingConfig())
        self._repetition = repetition

    def _grammar_setup(self) -> tuple[AnswerFormat, str, int, tuple[int, ...]]:
        """Return the arguments of `GrammarWriter`."""
        form, vocabulary = self.tokenizer.answer_format, self.tokenizer.to_json()
        return form, vocabulary, self._vocabulary, self._eos_token_ids

    def prepare(self, request: GenerationRequest, salt: str = "", adapter: str = "") -> Prepared:
        """Run `prepare_known`, and what it leaves to do. Raise TemplateFailed, PromptTooLong,
        InvalidRequest."""
        prepared = self.prepare_known(request, salt, adapter)
        return prepared if isinstance(prepared, Prepared) else prepared()

    def prepare_known(
        self, request: GenerationRequest, salt: str, adapter: str
    ) -> Prepared | Callable[[], Prepared]:
        """Render, tokenize, check: about 2 ms per 1,000 tokens, so call it off the event loop. If the grammar
        is not cached, return what compiles and checks it, in up to a second; that raises InvalidRequest.
        `salt` and `adapter` are the message's. Raise TemplateFailed, PromptTooLong, InvalidRequest."""
        prepared, in_reasoning = self._prepare_prompt(request, salt, adapter)
        with_grammar = partial(self._with_grammar, prepared, in_reasoning=in_reasoning)
        try:
            return with_grammar(known_only=True)
        except UnknownGrammar:
            return partial(with_grammar, known_only=False)

    def _with_grammar(self, prepared: Prepared, *, in_reasoning: bool, known_only: bool) -> Prepared:
        request = prepared.request
        grammar = self._grammars.grammar(request, in_reasoning=in_reasoning, known_only=known_only)
        prepared = replace(
            prepared, request=request.tokenized(), kept_bytes=prepared.kept_bytes + len(grammar)
        )
        if not grammar:
            return prepared
        submit = msgspec.structs.replace(prepared.submit, grammar=grammar)
        unheld = self._grammars.unheld(request, in_reasoning=in_reasoning)
        place = "tools" if request.structure is None else request.structure.place
        return replace(prepared, submit=submit, unheld=unheld, grammar_place=place)

    def _prepare_prompt(self, request: GenerationRequest, salt: str, adapter: str) -> tuple[Prepared, bool]:
        """Prepare all but the grammar. Return also whether the prompt has opened reasoning."""
        check_kind(request, self._folder.kind)
        if (embeds := request.kind == "embedding") and self._folder.embedder is not None:
            check_dimensions(request.dimensions, self._folder.embedder)
        self._check_vocabulary((token for token, _ in request.sampling.logit_bias), "logit_bias")
        self._check_tools(request.prompt)
        field = request.field or _field(request.prompt)
        # One token of the context is the answer's, but a vector needs none.
        answered, cut = int(not embeds), truncated_length(request, self.context_tokens)
        most_tokens = self.context_tokens - answered if cut is None else None
        tokens = self._tokens(request.prompt, most_tokens, field, salt=salt)
        if not tokens.ids:
            raise InvalidRequest("the prompt is empty", param=field)
        if cut is not None and len(tokens.ids) > cut:
            tokens = _Tokens(compact(truncated(tokens.ids, cut, self.tokenizer.encode_whole(""))))
        prompt, labels = self._labelled(request, tokens)
        max_tokens = self._fit(len(prompt), answered, request.max_tokens, field)
        if (least := request.min_tokens) > max_tokens:
            words = f"min_tokens is {least}, and there are at most {max_tokens} tokens to come"
            raise InvalidRequest(words, param="min_tokens")
        silent = self._silent(request)
        boundaries = boundaries_of(prompt, self._special_token_ids)
        first = request.prompt.messages[:1] if isinstance(request.prompt, ChatPrompt) else ()
        system_tokens = boundaries[0] if boundaries and first and first[0]["role"] == "system" else 0
        thinking = self.thinking.of(request, opens=tokens.opens_reasoning)
        submit = Submit(
            request_id=0,
            prompt=prompt,
            max_tokens=max(1, max_tokens),  # The engine reads a prompt's last token as it computes the next.
            stop_token_ids=self._stop_token_ids(request, silent),
            sampling=request.sampling,
            salt=salt,
            session=request.session,
            system_tokens=system_tokens,
            boundaries=boundaries,
            top_logprobs=request.top_logprobs,
            min_tokens=request.min_tokens,
            # Without a limit only the server counts.
            thinking=None if thinking is None or thinking.tokens is None else thinking,
            prompt_logprobs=request.prompt_logprobs,
            adapter=adapter,
            dimensions=request.dimensions if embeds else None,
            labels=labels,
            holds=tuple(
                self._held(hold, request.prompt, prompt, system_tokens, salt) for hold in request.holds
            ),
        )
        offered = OfferedTools(request.prompt.offered_tools if isinstance(request.prompt, ChatPrompt) else ())
        continues = self._continues(request, prompt)
        pipelines = partial(
            self._answer_pipelines, request.tokenized(), tokens, silent, thinking, offered, continues
        )
        blocks = () if embeds else block_hashes(prompt, salted(adapter, salt))
        repetition = request.repetition or (None if request.ignore_eos else self._repetition)
        prepared = Prepared(
            request, submit, pipelines, blocks, repetition=repetition, kept_bytes=offered.kept_bytes
        )
        return prepared, tokens.opens_reasoning

    def _labelled(self, request: GenerationRequest, tokens: _Tokens) -> tuple[TokenIds, tuple[int, ...]]:
        """Return the prompt up to its labels, reasoning closed, and each label's first token there."""
        if given := tuple(label for label in request.labels if isinstance(label, int)):
            self._check_vocabulary(given, "label_token_ids")
        if given or not request.labels:
            return tokens.ids, given
        form, before = self.tokenizer.answer_format, request.begun
        if form.layout is Layout.HARMONY:
            before = f"<|channel|>final<|message|>{before}"
        elif form.reasoning is not None and (tokens.opens_reasoning or form.reasoning.opens):
            before = f"\n{form.reasoning.end}\n\n{before}"
        # Behind another text a tokenizer may read them otherwise.
        tail = self.tokenizer.decode(tokens.ids[-CONTINUED_TOKENS:])
        texts = [tail, *(tail + before + label for label in ("", *request.labels))]
        last, begun, *behind = self.tokenizer.encode_all(texts)
        labels = tuple(ids[len(begun)] for ids in behind if ids[: len(begun)] == begun and ids != begun)
        if len(set(labels)) < len(request.labels) or begun[: len(last)] != last:
            raise InvalidRequest(f"the model's tokenizer does not tell the labels {request.labels} apart")
        return tokens.ids + compact(begun[len(last) :]), labels

    def _held(
        self, hold: Hold, chat: Prompt, prompt: TokenIds, system_tokens: int, salt: str
    ) -> tuple[int, float]:
        """Return how many tokens of the prompt a hold covers (all, if its messages alone cannot be rendered),
        and its seconds."""
        count = hold.messages
        if count is None or not isinstance(chat, ChatPrompt) or count >= len(chat.messages):
            return len(prompt), hold.seconds
        if count <= 1 and system_tokens:
            return system_tokens, hold.seconds
        part = replace(chat, messages=chat.messages[:count], continue_final=False)
        try:
            tokens = self._tokens(part, None, salt=salt).ids
        except SchedulerError:  # For example, the template wants a user's message last.
            return len(prompt), hold.seconds
        return common_run(prompt, 0, tokens, min(len(prompt), len(tokens))), hold.seconds

    def tokenize(self, prompt: Prompt, salt: str = "") -> TokenIds:
        """Return the token ids of `prompt`, however many. As slow as `prepare`. `salt`: only prompts of
        requests with the same salt share kept pieces with it.

        Raise TemplateFailed or InvalidRequest.
        """
        self._check_tools(prompt)
        return self._tokens(prompt, None, salt=salt).ids

    def detokenize(self, token_ids: Sequence[int], field: str) -> str:
        """Return the text of these ids. Raise InvalidRequest for an id outside the vocabulary."""
        self._check_vocabulary(token_ids, field)
        return self.tokenizer.decode(token_ids)

    def _answer_pipelines(
        self,
        request: GenerationRequest,
        tokens: _Tokens,
        silent_stops: Mapping[int, str],
        thinking: ThinkingBudget | None,
        offered: OfferedTools,
        continues: bool,
    ) -> list[AnswerPipeline]:
        stops, tools = WantedStrings(request.stop, silent_stops), bool(offered)
        form = self.tokenizer.answer_format
        is_plain = (form if tools else replace(form, tools=None)) == PLAIN
        short_ids = form.tools is not None and form.tools.short_ids
        token_bytes, opening_bytes = self.tokenizer.token_bytes, self.tokenizer.opening_bytes
        spelled = frozenset() if is_plain else self._spelled(request.prompt, tools=tools)

        def pipeline(choice: int) -> AnswerPipeline:
            spans = None if request.top_logprobs is None else TokenSpans(token_bytes, opening_bytes)
            assembly: Assembly | None = None
            prompt: PromptLogprobs | None = None
            if choice == 0 and request.prompt_logprobs is not None:
                prompt = PromptLogprobs(tokens.ids, token_bytes, opening_bytes, tokens.added)
            if isinstance(request.prompt, ChatPrompt) and not is_plain:
                assembly = Assembly(
                    form,
                    offered,
                    lambda index: call_id(f"{request.public_id}/{choice}/{index}", short=short_ids),
                    in_reasoning=tokens.opens_reasoning,
                    parallel_calls=request.prompt.parallel_tool_calls,
                    spans=spans,
                )
            return AnswerPipeline(
                self.tokenizer.detokenizer(spelled, begun=continues),
                stops,
                assembly,
                includes_stop=request.includes_stop,
                min_tokens=request.min_tokens,
                spans=spans,
                thinking=None if thinking is None else ThinkingLimit(thinking),
                prompt=prompt,
            )

        return [pipeline(choice) for choice in range(request.choices)]

    def _continues(self, request: GenerationRequest, ids: TokenIds) -> bool:
        """Return whether the answer continues a text, and does not begin one, of which tokenizers may drop
        the first space. What a grammar holds keeps every byte that the grammar counts."""
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            continues = prompt.continue_final and bool(prompt.messages[-1].get("content"))
        else:
            continues = any(token not in self._special_token_ids for token in ids[-CONTINUED_TOKENS:])
        return continues or request.structure is not None

    def _opens_reasoning(self, prompt: Prompt, text: str) -> bool:
        """Return whether the prompt ends inside reasoning: some templates write its opening mark."""
        reasoning = self.tokenizer.answer_format.reasoning
        if not isinstance(prompt, ChatPrompt) or reasoning is None:
            return False
        if prompt.continue_final:
            begun = str(prompt.messages[-1].get("content", ""))
            return begun.rfind(reasoning.start) > begun.rfind(reasoning.end)
        return text.rstrip().endswith(reasoning.start)

    @cached_property
    def _before(self) -> TokenIds:
        """The tokens that the tokenizer puts before a text to continue, BOS for example. One that it puts
        behind a text would end it."""
        ids, whole = self.tokenizer.encode("a"), self.tokenizer.encode_whole("a")
        places = (at for at in range(len(whole)) if whole[at : at + len(ids)] == ids)
        return compact(whole[: next(places, 0)])

    def _tokens(self, prompt: Prompt, most_tokens: int | None, field: str = "", *, salt: str = "") -> _Tokens:
        """Return the prompt's tokens. One that has far more than `most_tokens` is not tokenized whole, which
        would take much memory. `field`: the request field for error messages, if it is not
        the one of this kind of prompt. `salt`: only prompts with the same salt share kept pieces."""
        field = field or _field(prompt)
        match prompt:
            case ChatPrompt():
                text = self.tokenizer.render(prompt)
            case TextPrompt(text=text):
                pass
            case TokenPrompt(token_ids=token_ids):
                self._check_vocabulary(token_ids, field)
                return _Tokens(compact(token_ids))
            case _:
                assert_never(prompt)
        if not _is_unicode(text):
            raise InvalidRequest("a lone surrogate is no character", param=field)
        if most_tokens is not None and len(text) > _USUAL_CHARACTERS * most_tokens:
            self._check_long(text, most_tokens, field)
        is_whole = isinstance(prompt, TextPrompt) and prompt.add_special_tokens
        if is_whole and self._folder.kind == "embedding":
            return _Tokens(compact(self.tokenizer.encode_whole(text)))
        ids, before = self.pieces.encode(text, salt), self._before
        if is_whole and before and ids[: len(before)] != before:
            return _Tokens(before + ids, added=len(before))
        return _Tokens(ids, self._opens_reasoning(prompt, text))

    def _check_long(self, text: str, most_tokens: int, field: str) -> None:
        """Raise PromptTooLong if the text, cut into chunks, has more than twice `most_tokens`. A cut makes a
        word two tokens at most, and there are no more chunks than tokens that fit."""
        chunk, seen = max(_CHUNK_CHARACTERS, len(text) // max(1, most_tokens)), 0
        for start in range(0, len(text), chunk):
            seen += len(self.tokenizer.encode(text[start : start + chunk]))
            if seen > 2 * most_tokens:
                raise PromptTooLong(seen // 2, None, self.context_tokens, param=field, counted=False)

    def _fit(self, prompt_tokens: int, least: int, max_tokens: int | None, field: str) -> int:
        room = self.context_tokens - prompt_tokens
        if room < least:
            raise PromptTooLong(prompt_tokens, None, self.context_tokens, param=field)
        if max_tokens is not None and max_tokens > room:
            raise PromptTooLong(prompt_tokens, max_tokens, self.context_tokens, param="max_tokens")
        return room if max_tokens is None else max_tokens

    def _stop_token_ids(self, request: GenerationRequest, silent: Mapping[int, str]) -> tuple[int, ...]:
        """Return the tokens that end the answer in the engine; among them each special one that is a whole
        stop string."""
        self._check_vocabulary(request.stop_token_ids, "stop_token_ids")
        by_model = () if request.ignore_eos else self._eos_token_ids
        by_text = (token for token, spelling in silent.items() if spelling in request.stop)
        return tuple(dict.fromkeys((*by_model, *request.stop_token_ids, *by_text)))

    def _silent(self, request: GenerationRequest) -> dict[int, str]:
        """Return the special tokens that the request's stop strings name and that give no text, with their
        spelling."""
        written = [self.tokenizer.encode(text) for text in request.stop if _is_unicode(text)]
        named = dict.fromkeys(token for ids in written for token in ids if token in self._special_token_ids)
        tools = isinstance(request.prompt, ChatPrompt) and bool(request.prompt.offered_tools)
        spelled, silent = self._spelled(request.prompt, tools=tools), {}
        for token in named:
            detokenizer = self.tokenizer.detokenizer(spelled)
            if not detokenizer.feed(token) + detokenizer.finish():
                silent[token] = self.tokenizer.decode([token])
        return silent

    def _spelled(self, prompt: Prompt, *, tools: bool) -> frozenset[str]:
        """Return the special tokens that are in the text of the answer, because it has marks of them."""
        if not isinstance(prompt, ChatPrompt):
            return frozenset()
        return self.tokenizer.answer_format.spelled(tools=tools)

    def _check_tools(self, prompt: Prompt) -> None:
        if not isinstance(prompt, ChatPrompt):
            return
        names, only = [tool.name for tool in prompt.offered_tools], prompt.only_tool
        if prompt.tool_choice is ToolChoice.REQUIRED and not names:
            raise InvalidRequest("tool_choice: there are no tools to call", param="tool_choice")
        if only is not None and only not in names:
            raise InvalidRequest(f"tool_choice: {only!r} is none of the tools", param="tool_choice")
        if names and self.tokenizer.answer_format.notation is None:
            why = "this server reads no tool calls (--tool-parser none, or a model without a chat template)"
            raise UnsupportedParameter(why, param="tools")

    def _check_vocabulary(self, token_ids: Iterable[int], field: str) -> None:
        outside = next((token for token in token_ids if not 0 <= token < self._vocabulary), None)
        if outside is not None:
            words = f"{field} names token {outside}, outside the vocabulary of {self._vocabulary}"
            raise InvalidRequest(words, param=field)


def _field(prompt: Prompt) -> str:
    """Return the request field of the prompt, for error messages."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"


def _is_unicode(text: str) -> bool:
    # The first is cheap: strings know whether they are ASCII.
    return text.isascii() or _SURROGATE.search(text) is None


MOST_BOUNDARIES = 256
"""Bound on the boundaries of a prompt: of thousands of turns, the first and the latest matter."""


def boundaries_of(tokens: Sequence[int], special: frozenset[int]) -> tuple[int, ...]:
    """Return positions before each run of special tokens, ascending, without 0: the end of the system prompt,
    of each message, and last the point before the generation prompt.

    Templates mark turns with special tokens, which differ between models, but in every model a run of them
    begins where a text ends. So no template is parsed and nothing is rendered twice.
    """
    if not special or not tokens:
        return ()
    ids = np.asarray(tokens)
    table = np.zeros(1 + max(max(special), int(ids.max())), dtype=bool)
    table[list(special)] = True
    marked = table[ids]
    positions: list[int] = (1 + np.flatnonzero(marked[1:] & ~marked[:-1])).tolist()
    if len(positions) > MOST_BOUNDARIES:
        positions = positions[: MOST_BOUNDARIES // 4] + positions[-3 * MOST_BOUNDARIES // 4 :]
    return tuple(positions)
