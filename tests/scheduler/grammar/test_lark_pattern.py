"""The text of a custom tool is held to its grammar, in each notation of calls."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import InvalidRequest
from scheduler.grammar.lark_pattern import Unreadable, lark_pattern, regex_pattern
from scheduler.request import Tool, ToolChoice
from scheduler.structure import Pattern, Rules
from tests.scheduler.answer.notations import form
from tests.scheduler.grammar.test_answer_grammar import NOTATIONS, preparation, request, walks
from tests.scheduler.grammar.walks import Walked, Walker

PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""Codex's."""
SUM = """// A sum
?start: term (SP "+" SP term)~1..3 -> sum
      | term
!term.2: INT | "-" INT | "x".."z" | /[a-c]\\/d/i   # a fraction
SP: " "
%import common.INT
"""


@pytest.mark.parametrize(
    ("grammar", "text", "fits"),
    [
        (PATCH, "*** Begin Patch\n*** Update File: a b\n@@ f\n-one\n+two\n c\n*** End Patch\n", True),
        (PATCH, "*** Begin Patch\n*** Add File: a\n+x\n*** Delete File: b\n*** End Patch", True),
        (PATCH, "*** Begin Patch\n*** End Patch\n", False),
        (SUM, "1 + -22 + y", True),
        (SUM, "A/d", True),
        (SUM, "1 + 2 + 3 + 4 + 5", False),
        (SUM, "1 +2", False),
        ('start: "a" B?\nB: "\\n" [C]\nC: "\\u00e9\\"*"i', 'a\né"*', True),
        ('start: "a" "b"\n%import common.WS\n%ignore WS', " a\n b ", True),
        ('start: "a"{2,}\n', "aaa", True),
        ('start: "a"{2,}\n', "a", False),
    ],
)
def test_a_lark_grammar_is_a_pattern(grammar: str, text: str, fits: bool) -> None:
    """Rules, terminals, repetitions, ranges, aliases, priorities, comments, what is imported and ignored."""
    assert (re.fullmatch(lark_pattern(grammar), text) is not None) == fits


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('a: "x"', "'start'"),
        ('start: "(" start ")" | ', "'start' contains itself"),
        ("start: a{b}\na{x}: x", "a"),
        ("start: A\n%import python.A", "common"),
        ("start: A\n%declare A", "%declare"),
        ('start: ("a"', "missing"),
        ("start: a0\n" + "".join(f"a{n}: a{n + 1}\n" for n in range(2000)), "nested too deeply"),
        ("start: " + "(" * 2000, "nested too deeply"),
        ('start: a\na[max_tokens=3]: "x"', "'a[max_tokens=3]' is not supported"),
        ('start: "a" & "b"', "'&' is not supported"),
    ],
)
def test_what_is_no_pattern_says_why(grammar: str, why: str) -> None:
    """Never another exception, whatever the text."""
    with pytest.raises(Unreadable, match=re.escape(why)):
        lark_pattern(grammar)


@given(st.text('start:|()[]?*+~"/.%{}, \n-><abA1', max_size=40))
def test_any_text_is_a_pattern_or_says_why(grammar: str) -> None:
    """A client may send anything."""
    with suppress(Unreadable):
        lark_pattern("start: " + grammar)


@pytest.mark.parametrize(
    ("regex", "bare"),
    [
        ("^a+$", "a+"),
        ("a|b$", "a|b$"),
        (r"a\$", r"a\$"),
        (r"a\\$", r"a\\"),
        ("^(a|b)$", "^(a|b)$"),
    ],
)
def test_anchors_around_a_whole_pattern_go(regex: str, bare: str) -> None:
    """They say what holds anyhow; within an alternative they are left, and refused."""
    assert regex_pattern(regex) == bare


TEXTS: dict[str, Pattern | Rules] = {
    "lark": Rules(
        'start: "a\\"b\\\\" line+ END?\nline: "\\n" /[x-z\\u00e9]{1,3}/\nEND: "<e>"', "tools.0.format"
    ),
    "regex": Pattern('^[0-9]{2}"[\\n\\\\]é$', "tools.0.format"),
}


def custom(text: Pattern | Rules) -> Tool:
    parameters = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return Tool("edit", "", parameters, strict=True, place="tools.0.format", text=text)


@pytest.mark.parametrize("syntax", TEXTS)
@pytest.mark.parametrize("notation", [*NOTATIONS, "qwen3_coder", "minimax_m2", "gemma4", "pythonic"])
def test_a_custom_tools_text_matches_its_grammar(notation: str, syntax: str) -> None:
    """Random walks through the masks, read back by the notation's parser."""
    text = TEXTS[syntax]
    pattern = lark_pattern(text.text) if isinstance(text, Rules) else regex_pattern(text.regex)
    asked = request(tools=(custom(text),), tool_choice=ToolChoice.REQUIRED, parallel_tool_calls=False)
    by = Walker(NOTATIONS.get(notation) or Walked(form(notation), ()))
    walked = walks(by, asked, range(5))
    assert walked
    for message in walked:
        [(name, arguments)] = message.calls
        assert (name, set(arguments)) == ("edit", {"input"})
        assert re.fullmatch(pattern, arguments["input"]), arguments


def test_an_unknown_pattern_is_refused_by_its_place() -> None:
    """Look-around, for one."""
    tool = custom(Pattern("(?=a)a", "tools.0.format"))
    with pytest.raises(InvalidRequest) as refused:
        preparation("hermes").prepare(request(tools=(tool,), tool_choice=ToolChoice.AUTO))
    assert refused.value.param == "tools.0.format"
