"""The preparation process itself: it does the server's calls, one after another, and holds conversations."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, assert_never

from api.freed_memory import return_small_blocks
from api.preparers.messages import Begun, Caches, Call, Free, Reply, Serve, Started, ToPreparer
from api.preparers.pickles import dump_error, dump_result, load_work
from scheduler.link.wire_struct import WireStruct
from scheduler.prompt.preparation import Preparation


class Recipe(Protocol):
    """How a process makes its own `Preparation` of a model. It can be pickled."""

    def make(self) -> Preparation: ...


class Models(dict[str, Preparation]):
    """The first model's tokenizer is loaded at once, the others' when a request asks for them."""

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        super().__init__()
        self._recipes = recipes
        for name in list(recipes)[:1]:
            self[name]

    def __missing__(self, name: str) -> Preparation:
        self[name] = made = self._recipes[name].make()
        return made


class Preparer:
    """Carries out calls. It takes no more than one at a time: one interpreter has no more to give."""

    def __init__(self, send: Callable[[WireStruct], None]) -> None:
        self._send = send
        self._models: Mapping[str, Preparation] = {}
        self.held: dict[int, object] = {}
        self._handles = count(1)

    def handle(self, message: ToPreparer) -> None:
        match message:
            case Serve(models=recipes):
                self._models = Models(pickle.loads(recipes))
                self._send(Started())
            case Call():
                self._send(Begun(message.number))
                self._send(self._reply(message))
                if message.large:
                    return_small_blocks()
            case Free(handle=handle):
                self.held.pop(handle, None)
            case _:
                assert_never(message)

    def _reply(self, call: Call) -> Reply:
        made: list[int] = []

        def hold(value: object) -> int:
            made.append(next(self._handles))
            self.held[made[-1]] = value
            return made[-1]

        raised = False
        try:
            with _without_collector():
                result = dump_result(self._done(call), hold)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A panic of a Rust library (tokenizers, llguidance) is no Exception.
            result, raised = dump_error(error), True
            for handle in made:
                self.held.pop(handle)
            made.clear()
        return Reply(call.number, result, raised, tuple(made), self._caches())

    def _done(self, call: Call) -> Any:
        work = load_work(call.work, self._models)
        if call.of is None:
            return work.function(*work.args)
        return work.function(self.held[call.of], *work.args)

    def _caches(self) -> tuple[Caches, ...]:
        return tuple(_caches(name, made) for name, made in self._models.items())


@contextmanager
def _without_collector() -> Iterator[None]:
    """It would walk everything that the work has allocated so far, five times; nothing of that has cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _caches(model: str, preparation: Preparation) -> Caches:
    pieces, texts = preparation.pieces.statistics(), preparation.tokenizer.text_statistics()
    return Caches(
        model,
        pieces.tokens,
        pieces.kept_tokens,
        pieces.held_bytes,
        texts.messages,
        texts.kept_messages,
        texts.held_bytes,
    )
