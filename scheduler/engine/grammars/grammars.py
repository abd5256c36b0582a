"""Compile grammars to matchers on a separate thread: a large grammar takes a second, and every stream would
wait for it. The library releases the GIL while it works."""

from __future__ import annotations

import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from scheduler.engine.grammars.constraint import Constraint
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.deep_stack import on_deep_stack
from scheduler.shared.grammar_limits import parser_limits
from scheduler.shared.messages import GrammarTokenizer, Submit
from scheduler.shared.special_spellings import without_spellings

KEPT = 64
"""Compiled grammars kept (LRU). About 1 MB each for a large schema."""


class Grammars:
    """One per model; `tokenizer` is None if the model has none that the library can read."""

    def __init__(
        self,
        tokenizer: LLTokenizer | None,
        kept: int = KEPT,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`clock`: seconds, to time a row's masks."""
        self._tokenizer = tokenizer
        self._clock = clock
        self._kept = kept
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._awaited: dict[int, Future[LLMatcher]] = {}
        """Compilations by request id. Separate from `_compiled`, where more than `kept` of them would evict
        each other."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    @property
    def compiled(self) -> int:
        """Return the number of grammars kept or being compiled."""
        return len(self._compiled)

    def preparing(self, submit: Submit) -> bool:
        """Return whether a request's grammar is still being compiled; the first call starts it."""
        if not submit.grammar or self._tokenizer is None:
            return False
        if submit.request_id not in self._awaited:
            self._awaited[submit.request_id] = self._future(submit.grammar)
        return not self._awaited[submit.request_id].done()

    def forget(self, request_id: int) -> None:
        """Forget a request that was admitted, cancelled or refused. Drop a compilation that no other request
        awaits and that has not begun: later requests would wait seconds for it, and the watchdog would
        declare the engine hung."""
        awaited = self._awaited.pop(request_id, None)
        if awaited is not None and awaited not in self._awaited.values() and awaited.cancel():
            for grammar in [grammar for grammar, kept in self._compiled.items() if kept is awaited]:
                del self._compiled[grammar]

    def constraint(self, sequence: EngineSequence) -> Constraint | None:
        """Return the constraint of a request about to run, advanced by its answer so far; None without a
        grammar. Raise RequestRefused."""
        submit = sequence.submit
        if not submit.grammar:
            return None
        if self._tokenizer is None:
            raise RequestRefused("this model's tokenizer cannot be used with grammars")
        awaited = self._awaited.get(submit.request_id) or self._future(submit.grammar)
        matcher = self._own_matcher(awaited, submit.grammar)
        if matcher.is_error():
            raise RequestRefused(f"the grammar cannot be used: {matcher.get_error()}")
        cut_by = None if submit.thinking is None else submit.thinking.end[0]
        return Constraint(matcher, sequence.answer(), self._clock, cut_by)

    def _own_matcher(self, compiled: Future[LLMatcher], grammar: str) -> LLMatcher:
        """Return a copy of a compiled matcher. Raise RequestRefused for any exception of the compilation,
        which must not end the engine."""
        try:
            return compiled.result().deep_copy()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            # BaseException: a panic of the library, which is written in Rust, is no Exception.
            if self._compiled.get(grammar) is compiled:
                del self._compiled[grammar]
            message = f"the grammar cannot be compiled: {type(error).__name__}: {error}"
            raise RequestRefused(message) from error

    def _future(self, grammar: str) -> Future[LLMatcher]:
        if grammar in self._compiled:
            self._compiled.move_to_end(grammar)
        else:
            self._compiled[grammar] = self._thread.submit(self._compile, grammar)
            if len(self._compiled) > self._kept:
                self._compiled.popitem(last=False)
        return self._compiled[grammar]

    def _compile(self, grammar: str) -> LLMatcher:
        assert self._tokenizer is not None
        tokenizer = self._tokenizer
        return on_deep_stack(lambda: LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits()))


def grammar_tokenizer(source: GrammarTokenizer, vocabulary: int, config: dict[str, Any]) -> LLTokenizer:
    """Return the model's tokens in the library's form; takes 10 ms for a small vocabulary, half a second for
    a large one. Raise what the library raises for a tokenizer that it does not support."""
    text_config = config.get("text_config") or {}
    ends = {
        *source.eos_token_ids,
        *_ids(config.get("eos_token_id")),
        *_ids(text_config.get("eos_token_id")),
    }
    if not ends:
        raise ValueError("no token ends an answer")
    text = without_spellings(zlib.decompress(source.json).decode())
    return LLTokenizer(text, n_vocab=vocabulary, eos_token=sorted(ends))


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(value)]
