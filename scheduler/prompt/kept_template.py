"""A chat template compiled so that the text of each turn of its loops is kept: transformers' environment,
Jinja's own compiler, and around the body of each loop a look into `kept_texts.py`.

A loop's body becomes, in the generated Python:

    text = rendering.find(site, (target, what it reads outside...), namespaces)
    if text is not None:
        yield text
        continue
    ...the body, into a buffer
    yield rendering.keep(buffer, namespaces)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from jinja2 import Environment, Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace

from scheduler.prompt.kept_texts import FAILED, KeptTexts
from scheduler.prompt.template_loops import Site, loops_of
from scheduler.prompt.template_names import LOOP, METHODS

_RENDERING = " rendering"
"""The variable with the rendering. No template can name it, with its space."""


class KeptTemplate:
    """Thread-safe."""

    def __init__(self, original: Template, source: str, texts: KeptTexts) -> None:
        """`original`: `source` as transformers compiles it; raise what Jinja does if it cannot be compiled
        again."""
        environment = original.environment.overlay()
        tree = environment.parse(source)
        loops = loops_of(tree)
        self.rejected = loops.rejected
        self.sites = len(loops.sites)
        self._texts = texts
        marks = dict[int, _Mark]()
        for number, site in enumerate(loops.sites):
            _mark(number, site, marks)
        # An attribute of the instance, so that it stays transformers' environment in everything else.
        generator: Any = partial(_Generator, marks)
        environment.code_generator_class = generator
        getter: Any = partial(_attribute, environment, environment.getattr)
        environment.getattr = getter  # type: ignore[method-assign]
        self._tree = tree  # The marks are known by the identity of its nodes.
        self._template = environment.from_string(tree)

    def render(self, variables: Mapping[str, Any], salt: str) -> str:
        """Return what the original renders of these variables, which must be plain data. Raise what it
        does, though a traceback may differ."""
        rendering = self._texts.rendering(salt, self.sites)
        text = self._template.render({**variables, _RENDERING: rendering})
        self._texts.add(rendering)
        return text


_DICT = frozenset(dir(dict))
_READ = {
    LoopContext: LOOP,
    str: METHODS - {"format"},
    dict: METHODS & _DICT,
}
_PLAIN = frozenset({str, int, bool, float, type(None), list, dict})


def _attribute(environment: Environment, checked: Callable[[Any, str], Any], thing: Any, name: str) -> Any:
    """Return what `checked` returns, the sandbox's `getattr`, without its checks where these certainly pass:
    they are most of a template's time."""
    kind = type(thing)
    if kind is dict and name not in _DICT:
        # Its members only: a dictionary has no other attributes.
        try:
            return thing[name]
        except KeyError:
            return environment.undefined(obj=thing, name=name)
    if kind in _READ and name in _READ[kind]:
        return getattr(thing, name)
    if issubclass(kind, Namespace) and not name.startswith("_"):
        value = getattr(thing, name, None)
        if value is not None and type(value) in _PLAIN:
            return value
    return checked(thing, name)


@dataclass(slots=True)
class _Mark:
    """At the beginning and at the end of a loop's body."""

    number: int
    site: Site
    begins: bool
    outer: list[str | None]
    """The buffer around the body, from its beginning for its end; None: it yields."""

    @property
    def rendering(self) -> str:
        return f"context.parent[{_RENDERING!r}]"


def _mark(number: int, site: Site, marks: dict[int, _Mark]) -> None:
    """Put statements without effect around the body, which the generator knows again. They read what the key
    reads, so that its names are known there."""
    body, outer = site.loop.body, list[str | None]()
    targets = [site.loop.target, *site.loop.target.find_all(nodes.Name)]
    target = [nodes.Name(one.name, "load") for one in targets if isinstance(one, nodes.Name)]
    spaces = [nodes.Name(name, "load") for name, _ in site.writes]
    begin = nodes.ExprStmt(nodes.Tuple([*target, *site.reads, *site.verdicts, *spaces], "load"))
    end = nodes.ExprStmt(nodes.Const(None))
    for one in (begin, end):
        one.set_lineno(site.loop.lineno)
    site.loop.body = [begin, *body, end]
    marks[id(begin)] = _Mark(number, site, begins=True, outer=outer)
    marks[id(end)] = _Mark(number, site, begins=False, outer=outer)


class _Generator(CodeGenerator):
    def __init__(self, marks: Mapping[int, _Mark], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._marks = marks
        self._reads_loop = False

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:  # noqa: N802
        mark = self._marks.get(id(node))
        if mark is None:
            super().visit_ExprStmt(node, frame)
        elif mark.begins:
            self._begin(mark, node, frame)
        else:
            self._end(mark, frame)

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802
        if self._reads_loop and isinstance(node.node, nodes.Name) and node.node.name == "loop":
            # The loop's own, as the analysis has found: what the sandbox returns, too.
            self.write(f"{frame.symbols.ref('loop')}.{node.attr}")
        else:
            super().visit_Getattr(node, frame)

    def _begin(self, mark: _Mark, node: nodes.ExprStmt, frame: Frame) -> None:
        site, rendering = mark.site, mark.rendering
        values = list[str]()
        assert isinstance(node.node, nodes.Tuple)
        read = node.node.items[: len(node.node.items) - len(site.writes)]
        targets = len(read) - len(site.reads) - len(site.verdicts)
        self._reads_loop = True
        for index, one in enumerate(read):
            value = self.temporary_identifier()
            values.append(value)
            if index < targets:
                self.writeline(f"{value} = ")
                self.visit(one, frame)
                continue
            # What the body evaluates only under a condition may raise here.
            self.writeline("try:")
            self.indent()
            is_read = index < targets + len(site.reads)
            self.writeline(f"{value} = {f'{rendering}.short' if is_read else 'not not '}(")
            self.visit(one, frame)
            self.write(")")
            self.outdent()
            self.writeline("except Exception:")
            self.indent()
            self.writeline(f"{value} = {FAILED!r}")
            self.outdent()
        self._reads_loop = False
        found = self.temporary_identifier()
        arguments = f"{mark.number}, ({', '.join(values)},), {_spaces(mark, frame)}"
        self.writeline(f"{found} = {rendering}.find({arguments})")
        self.writeline(f"if {found} is not None:")
        self.indent()
        self.simple_write(found, frame)
        self.writeline("continue")
        self.outdent()
        mark.outer.append(frame.buffer)
        self.buffer(frame)

    def _end(self, mark: _Mark, frame: Frame) -> None:
        made = f"concat({frame.buffer})"
        frame.buffer = mark.outer.pop()
        self.simple_write(f"{mark.rendering}.keep({made}, {_spaces(mark, frame)})", frame)


def _spaces(mark: _Mark, frame: Frame) -> str:
    return f"({''.join(f'({frame.symbols.ref(name)}, {attr!r}), ' for name, attr in mark.site.writes)})"
