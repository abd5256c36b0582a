"""What the names in a chat template stand for, and which of them are functions without effects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from jinja2 import nodes

_N = TypeVar("_N", bound=nodes.Node)

FUNCTIONS = frozenset({"namespace", "range", "dict", "raise_exception"})
"""Of the environment, without state. One that raises leaves nothing to be kept."""
METHODS = frozenset(
    [
        "strip",
        "lstrip",
        "rstrip",
        "split",
        "rsplit",
        "splitlines",
        "partition",
        "rpartition",
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "replace",
        "upper",
        "lower",
        "title",
        "capitalize",
        "casefold",
        "join",
        "find",
        "rfind",
        "index",
        "rindex",
        "count",
        "get",
        "items",
        "keys",
        "values",
        "format",
        "zfill",
        "ljust",
        "rjust",
        "center",
        "isdigit",
        "isalpha",
        "isalnum",
        "isspace",
        "islower",
        "isupper",
    ]
)
"""Of strings, lists and mappings; none changes its object."""
VIEWS = frozenset({"items", "keys", "values"})
"""Of these, those that return no plain value."""
_FILTERS = frozenset(
    [
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "format",
        "indent",
        "int",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "max",
        "min",
        "replace",
        "round",
        "safe",
        "sort",
        "string",
        "sum",
        "title",
        "tojson",
        "trim",
        "truncate",
        "upper",
        "wordcount",
    ]
)
CHEAP_FILTERS = frozenset(
    [
        "abs",
        "count",
        "d",
        "default",
        "first",
        "float",
        "int",
        "last",
        "length",
        "lower",
        "string",
        "trim",
        "upper",
    ]
)
"""Whose value is small, or a part of the operand."""
LAZY_FILTERS = frozenset(
    ["batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "unique"]
)
"""They return generators, which can be read once."""
_NAMED_FILTERS = frozenset({"map", "select", "reject", "selectattr", "rejectattr"})
"""They run the filter or test whose name they get."""
READERS = frozenset({"first", "join", "last", "length", "count", "list", "max", "min", "sort", "sum"})
"""They read a generator to its end, or throw it away."""
_TESTS = frozenset(
    [
        "==",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "equalto",
        "lessthan",
        "greaterthan",
        "boolean",
        "defined",
        "divisibleby",
        "even",
        "false",
        "float",
        "in",
        "integer",
        "iterable",
        "lower",
        "mapping",
        "none",
        "number",
        "odd",
        "sequence",
        "string",
        "true",
        "undefined",
        "upper",
    ]
)
LOOP = frozenset(
    [
        "index",
        "index0",
        "revindex",
        "revindex0",
        "first",
        "last",
        "length",
        "previtem",
        "nextitem",
        "depth",
        "depth0",
    ]
)
SPECIAL = frozenset({"caller", "varargs", "kwargs", "self", "super", "joiner", "cycler", "lipsum"})
"""They have effects, or a meaning of their own."""
ELSEWHERE = (
    nodes.Block,
    nodes.Extends,
    nodes.FromImport,
    nodes.Import,
    nodes.Include,
    nodes.ScopedEvalContextModifier,
)
_OPERATORS = (nodes.BinExpr, nodes.UnaryExpr, nodes.Compare, nodes.Operand, nodes.Concat, nodes.CondExpr)
PLAIN = (
    *_OPERATORS,
    nodes.Const,
    nodes.TemplateData,
    nodes.Tuple,
    nodes.List,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
    nodes.Slice,
)


class NotUnderstood(Exception):
    """What a loop's body does is not known to depend only on what can be in a key."""


class Outside:
    """What names stand for in a template."""

    def __init__(self, template: nodes.Template) -> None:
        self.macros = {one.name: one for one in template.body if isinstance(one, nodes.Macro)}
        macros = [macro.name for macro in template.find_all(nodes.Macro)]
        stores = Counter(
            name.name for name in template.find_all(nodes.Name) if name.ctx in ("store", "param")
        )
        if len(macros) != len(self.macros) or set(macros) & set(stores):
            raise NotUnderstood("a macro is defined twice, or in another scope, or set")
        if FUNCTIONS & (set(stores) | set(macros)):
            raise NotUnderstood("a function has another meaning")
        spaces, assigns = Counter[str](), list(template.find_all(nodes.Assign))
        self.lazy = set[str]()
        for one in assigns:
            if isinstance(one.target, nodes.Name) and isinstance(one.node, nodes.Call):
                spaces[one.target.name] += called(one.node) == "namespace"
            if is_lazy(one.node):
                if isinstance(one.target, nodes.NSRef):
                    raise NotUnderstood("a namespace holds what can be read once")
                self.lazy |= {name.name for name in all_of(one.target, nodes.Name)}
        self.namespaces = {name for name, times in spaces.items() if times}
        if any(stores[name] != spaces[name] for name in self.namespaces):
            raise NotUnderstood("a name is a namespace and something else")
        self._refuse_bare(template, assigns)

    def _refuse_bare(self, template: nodes.Template, assigns: Sequence[nodes.Assign]) -> None:
        """What has a second name could be changed or called unseen."""
        direct = {id(one.node) for one in assigns if isinstance(one.target, nodes.Name)}
        if any(called(one) == "namespace" and id(one) not in direct for one in template.find_all(nodes.Call)):
            raise NotUnderstood("a namespace has no name")
        callees = {id(one.node) for one in template.find_all(nodes.Call)}
        read = {id(one.node) for one in template.find_all(nodes.Getattr)}
        for name in template.find_all(nodes.Name):
            may_call = name.name in self.macros or name.name in FUNCTIONS
            if may_call and id(name) not in callees:
                raise NotUnderstood(f"{name.name} is passed on")
            if name.name in self.namespaces and name.ctx == "load" and id(name) not in read:
                raise NotUnderstood(f"{name.name} is passed on")


def called(call: nodes.Call) -> str | None:
    return call.node.name if isinstance(call.node, nodes.Name) else None


def is_lazy(value: nodes.Node) -> bool:
    """Whether the value may be, or hold, something that can be read once."""
    filters = list(all_of(value, nodes.Filter))
    read = {id(one.node) for one in filters if one.name in READERS}
    return any(one.name in LAZY_FILTERS and id(one) not in read for one in filters)


def all_of(root: nodes.Node, kind: type[_N]) -> Iterator[_N]:
    if isinstance(root, kind):
        yield root
    yield from root.find_all(kind)


def stored_in(root: nodes.Node) -> set[str]:
    return {name.name for name in all_of(root, nodes.Name) if name.ctx in ("store", "param")}


def check_named(node: nodes.Filter | nodes.Test) -> None:
    known = _TESTS if isinstance(node, nodes.Test) else _FILTERS | LAZY_FILTERS
    if node.name not in known or node.dyn_args is not None or node.dyn_kwargs is not None:
        raise NotUnderstood(f"it uses {node.name}")
    if isinstance(node, nodes.Filter) and node.name in _NAMED_FILTERS:
        names = [one.value if isinstance(one, nodes.Const) else None for one in node.args]
        # Of selectattr and rejectattr the first argument is an attribute.
        names = names[1:2] if node.name.endswith("attr") else names[:1]
        if any(one not in _TESTS and one not in _FILTERS for one in names):
            raise NotUnderstood(f"it uses {node.name} of something unknown")
