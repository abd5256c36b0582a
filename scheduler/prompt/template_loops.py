"""Which loops of a chat template may keep the text of each turn of theirs, and what that text depends on.

The body of a loop over messages is a function: of the message, of what it reads outside, to a text and to new
values of the namespaces that it sets. Whatever it may read must be in the key under which the text is kept.
So all of the body and of the macros that it calls is walked, and each expression that reads something outside
is collected whole: `loop.index0 > last.user` is kept as true or false, not as two numbers that change. What
is in none of the lists of `template_names.py` is not understood, and such a loop is rendered each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from jinja2 import nodes

from scheduler.prompt.template_names import (
    CHEAP_FILTERS,
    ELSEWHERE,
    FUNCTIONS,
    LOOP,
    METHODS,
    PLAIN,
    SPECIAL,
    VIEWS,
    NotUnderstood,
    Outside,
    all_of,
    called,
    check_named,
    is_lazy,
    stored_in,
)


@dataclass(frozen=True, slots=True)
class Site:
    """A loop whose texts may be kept."""

    loop: nodes.For
    reads: tuple[nodes.Expr, ...]
    """Expressions to evaluate where a turn of the loop begins. Their values, which may be large, and the
    target's decide the text."""
    verdicts: tuple[nodes.Expr, ...]
    """The same; their values are true or false."""
    writes: tuple[tuple[str, str], ...]
    """Namespaces and their attributes that a turn may set. They are among `reads`."""


@dataclass(frozen=True, slots=True)
class Loops:
    sites: tuple[Site, ...]
    rejected: tuple[str, ...]
    """Why other loops are rendered each time: for the operator."""


def loops_of(template: nodes.Template) -> Loops:
    """Find the loops of a parsed template that write text."""
    if any(True for _ in template.find_all(ELSEWHERE)):
        return Loops((), ("it consists of several templates",))
    sites, rejected = list[Site](), list[str]()
    try:
        outside = Outside(template)
    except NotUnderstood as reason:
        return Loops((), (str(reason),))
    for loop in _outer_loops(template.body):
        if next(loop.find_all(nodes.Output), None) is None:
            continue
        try:
            sites.append(_Body(outside, loop).site())
        except NotUnderstood as reason:
            rejected.append(f"line {loop.lineno}: {reason}")
    return Loops(tuple(sites), tuple(rejected))


def _outer_loops(body: Sequence[nodes.Node]) -> Iterator[nodes.For]:
    """Those in no other scope: only there do names mean the same in the loop and in macros."""
    for node in body:
        if isinstance(node, nodes.For):
            yield node
        elif isinstance(node, nodes.If):
            yield from _outer_loops((*node.body, *node.elif_, *node.else_))


class _Loop(Enum):
    """What `loop` is, where an expression stands."""

    SITE = auto()
    INNER = auto()
    """That of a loop in the body."""
    NONE = auto()


@dataclass(slots=True)
class _Scope:
    """Where an expression stands."""

    bound: set[str]
    """Names that are certainly set here, by the body itself."""
    stored: Set[str]
    """Names that the body, or the macro, sets somewhere, so that they do not mean what they mean outside."""
    loop: _Loop = _Loop.SITE

    def inner(self, *names: str, loop: _Loop | None = None) -> _Scope:
        return replace(self, bound=self.bound | set(names), loop=loop or self.loop)


@dataclass(slots=True)
class _Found:
    reads: dict[str, nodes.Expr] = field(default_factory=dict)
    verdicts: dict[str, nodes.Expr] = field(default_factory=dict)


class _Body:
    """Walks the body of one loop, and the macros that it calls."""

    def __init__(self, outside: Outside, loop: nodes.For) -> None:
        self._outside = outside
        self._loop = loop
        self._found = _Found()
        self._targets = {
            name.name
            for name in [loop.target, *loop.target.find_all(nodes.Name)]
            if isinstance(name, nodes.Name)
        }
        self._walked: set[str] = set()
        self._macros = [outside.macros[name] for name in _called_macros(loop, outside.macros)]
        self._stored = set[str]().union(*map(stored_in, loop.body))
        self._writes = _writes(loop, self._stored)
        for macro in self._macros:
            self._writes |= _writes(macro, stored_in(macro))

    def site(self) -> Site:
        loop = self._loop
        if loop.recursive or loop.test is not None or loop.else_:
            raise NotUnderstood("it is recursive, has a condition or an else")
        if self._targets & self._stored or "loop" in self._targets | self._stored:
            raise NotUnderstood("its target is set")
        if is_lazy(loop.iter) or any(
            name.name in self._outside.lazy for name in all_of(loop.iter, nodes.Name)
        ):
            raise NotUnderstood("what it runs over can be read once")
        if any(macro.lineno > loop.lineno for macro in self._macros):
            raise NotUnderstood("a macro is defined below it")
        self._block(loop.body, _Scope(set(self._targets), self._stored), inside=False)
        for name, attr in sorted(self._writes):
            if name not in self._outside.namespaces:
                raise NotUnderstood(f"{name} is no namespace")
            self._add(nodes.Getattr(nodes.Name(name, "load"), attr, "load"), boolean=False)
        return Site(
            loop,
            tuple(self._found.reads.values()),
            tuple(self._found.verdicts.values()),
            tuple(sorted(self._writes)),
        )

    # Statements

    def _block(self, body: Sequence[nodes.Node], scope: _Scope, *, inside: bool) -> None:
        """Walk statements in order; `scope.bound` grows. `inside`: in a loop of the body."""
        for node in body:
            self._statement(node, scope, inside=inside)

    def _statement(self, node: nodes.Node, scope: _Scope, *, inside: bool) -> None:
        match node:
            case nodes.Output():
                for child in node.nodes:
                    self._expression(child, scope)
            case nodes.Assign():
                if not (isinstance(node.node, nodes.Call) and called(node.node) == "namespace"):
                    self._expression(node.node, scope)
                else:
                    self._arguments(node.node, scope)
                self._assign(node.target, scope)
            case nodes.AssignBlock() if node.filter is None:
                self._block(node.body, scope.inner(), inside=inside)
                self._assign(node.target, scope)
            case nodes.If():
                self._if(node, scope, inside=inside)
            case nodes.For() if not node.recursive and not node.else_:
                self._expression(node.iter, scope)
                names = [name.name for name in all_of(node.target, nodes.Name)]
                within = scope.inner(*names, loop=_Loop.INNER)
                if node.test is not None:
                    self._expression(node.test, within, boolean=True)
                self._block(node.body, within, inside=True)
            case nodes.CallBlock() if _is_generation(node):
                self._block(node.body, scope.inner(), inside=False)
            case nodes.Break() | nodes.Continue() if inside:
                pass
            case _:
                raise NotUnderstood(f"it has a {type(node).__name__}")

    def _if(self, node: nodes.If, scope: _Scope, *, inside: bool) -> None:
        branches = [node, *node.elif_]
        ends = list[set[str]]()
        for branch in branches:
            self._expression(branch.test, scope, boolean=True)
            within = scope.inner()
            self._block(branch.body, within, inside=inside)
            ends.append(within.bound)
        within = scope.inner()
        self._block(node.else_, within, inside=inside)
        ends.append(within.bound)
        scope.bound |= set.intersection(*ends)

    def _assign(self, target: nodes.Node, scope: _Scope) -> None:
        if not isinstance(target, nodes.NSRef):
            scope.bound |= {name.name for name in all_of(target, nodes.Name)}
        elif target.name in scope.stored and target.name not in scope.bound:
            raise NotUnderstood(f"{target.name} may not be set")

    # Expressions

    def _expression(self, node: nodes.Node, scope: _Scope, *, boolean: bool = False) -> None:
        """Collect what of the outside the expression reads, in the largest parts that are outside as a
        whole. `boolean`: only its truth matters."""
        small = boolean or isinstance(node, nodes.Compare | nodes.Test | nodes.Not)
        # A longer expression would make the same long text at each turn; its parts are hashed once.
        is_part = small or isinstance(node, nodes.Name | nodes.Getattr | nodes.Getitem | nodes.Filter)
        if isinstance(node, nodes.Expr) and is_part and self._is_outside(node, scope, with_target=small):
            if self._reads_outside(node):
                self._add(node, boolean=small)
            return
        match node:
            case nodes.Name():
                if node.name not in scope.bound:
                    raise NotUnderstood(f"it reads {node.name}, which it may set")
            case nodes.And() | nodes.Or():
                self._expression(node.left, scope, boolean=boolean)
                self._expression(node.right, scope, boolean=boolean)
            case nodes.Not():
                self._expression(node.node, scope, boolean=True)
            case nodes.CondExpr():
                self._expression(node.test, scope, boolean=True)
                for branch in (node.expr1, node.expr2):
                    if branch is not None:
                        self._expression(branch, scope, boolean=boolean)
            case nodes.Call():
                self._call(node, scope)
            case nodes.Filter() | nodes.Test():
                check_named(node)
                self._children(node, scope)
            case nodes.Getattr(node=nodes.Name(name="loop")) if scope.loop is _Loop.INNER:
                pass
            case nodes.Getattr(node=nodes.Name(name=name)) if self._is_namespace(name, scope):
                pass  # One that is written: its value at the beginning is read anyhow.
            case nodes.Getattr() | nodes.Getitem():
                self._children(node, scope)
            case _ if isinstance(node, PLAIN):
                self._children(node, scope)
            case _:
                raise NotUnderstood(f"it has a {type(node).__name__}")

    def _is_namespace(self, name: str, scope: _Scope) -> bool:
        return name in self._outside.namespaces and name not in scope.stored

    def _children(self, node: nodes.Node, scope: _Scope) -> None:
        for child in node.iter_child_nodes():
            self._expression(child, scope)

    def _arguments(self, call: nodes.Call, scope: _Scope) -> None:
        for child in (*call.args, *call.kwargs, call.dyn_args, call.dyn_kwargs):
            if child is not None:
                self._expression(child, scope)

    def _call(self, call: nodes.Call, scope: _Scope) -> None:
        self._arguments(call, scope)
        if isinstance(call.node, nodes.Getattr) and call.node.attr in METHODS:
            self._expression(call.node.node, scope)
            return
        name = called(call)
        if name is not None and name in self._outside.macros:
            self._macro(self._outside.macros[name])
        elif name is None or name not in FUNCTIONS - {"namespace"}:
            raise NotUnderstood(f"it calls {name or getattr(call.node, 'attr', 'a value')}")

    def _macro(self, macro: nodes.Macro) -> None:
        if macro.name in self._walked:
            return
        self._walked.add(macro.name)
        names = {name.name for name in macro.args}
        if names & {"caller", "varargs", "kwargs", "loop"}:
            raise NotUnderstood(f"{macro.name} has arguments of a special name")
        # Free names of a macro are those of the template, never the loop's.
        stored = stored_in(macro) | self._stored | self._targets
        for default in macro.defaults:
            self._expression(default, _Scope(set(), stored, _Loop.NONE))
        self._block(macro.body, _Scope(names, stored, _Loop.NONE), inside=False)

    # What is outside

    def _is_outside(self, node: nodes.Node, scope: _Scope, *, with_target: bool) -> bool:
        """Whether `node` may be evaluated where the loop's turn begins, with the value that it has later."""
        match node:
            case nodes.Name(name=name):
                if name in self._targets and name not in scope.stored:
                    return with_target
                if name in SPECIAL:
                    raise NotUnderstood(f"it reads {name}")
                outside = self._outside
                special = outside.namespaces | outside.lazy | outside.macros.keys() | FUNCTIONS | {"loop"}
                return name not in special and name not in scope.stored
            case nodes.Getattr(node=nodes.Name(name="loop"), attr=attr):
                if scope.loop is _Loop.SITE and attr not in LOOP:
                    raise NotUnderstood(f"it uses loop.{attr}")
                return scope.loop is _Loop.SITE
            case nodes.Getattr(node=nodes.Name(name=name), attr=attr) if name in self._outside.namespaces:
                return self._is_namespace(name, scope) and (name, attr) not in self._writes
            case nodes.Call():
                is_method = isinstance(node.node, nodes.Getattr) and node.node.attr in METHODS - VIEWS
                if not is_method or node.dyn_args is not None or node.dyn_kwargs is not None:
                    return False
            case nodes.Filter() | nodes.Test():
                check_named(node)
                if isinstance(node, nodes.Filter) and node.name not in CHEAP_FILTERS:
                    return False  # Not at each turn: its operand decides.
            case nodes.Getattr() | nodes.Getitem():
                pass
            case _ if not isinstance(node, PLAIN):
                return False
        return all(
            self._is_outside(child, scope, with_target=with_target) for child in node.iter_child_nodes()
        )

    def _reads_outside(self, node: nodes.Expr) -> bool:
        """Constants and the target are in every key."""
        return any(name.name not in self._targets for name in all_of(node, nodes.Name))

    def _add(self, node: nodes.Expr, *, boolean: bool) -> None:
        many = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        many = many or (isinstance(node, nodes.Name) and node == self._loop.iter)
        if not boolean and many:
            raise NotUnderstood("it reads many messages at once")
        # The representation of a node is its content.
        (self._found.verdicts if boolean else self._found.reads).setdefault(repr(node), node)


def _called_macros(root: nodes.Node, macros: Mapping[str, nodes.Macro]) -> set[str]:
    found, waiting = set[str](), [root]
    while waiting:
        for call in waiting.pop().find_all(nodes.Call):
            name = called(call)
            if name is not None and name in macros and name not in found:
                found.add(name)
                waiting.append(macros[name])
    return found


def _writes(root: nodes.Node, own: Set[str]) -> set[tuple[str, str]]:
    """What it sets of namespaces that are not its own."""
    return {(ref.name, ref.attr) for ref in root.find_all(nodes.NSRef) if ref.name not in own}


def _is_generation(node: nodes.CallBlock) -> bool:
    """`{% generation %}` of transformers, which marks the model's own text, and here does nothing."""
    callee = node.call.node
    return isinstance(callee, nodes.ExtensionAttribute) and callee.name == "_generation_support"
