"""Texts that a model can be made to write, for parsers that take too long for them."""

from __future__ import annotations

from collections.abc import Iterator

_GLM = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_DSML = "｜DSML｜"
MARKS: dict[str, tuple[str, ...]] = {
    "dsml": (f'<{_DSML}invoke name="f">', f'<{_DSML}parameter name="p" string="true">', f"</{_DSML}invoke>"),
    "function_gemma": ("call:f{", "}", "<escape>", "a:", ","),
    "gemma4": ("call:f{", "}", '<|"|>', "a:"),
    "glm47": _GLM,
    "json_tools": ("[", "{", '"'),
    "kimi_k2": ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "functions.f:0"),
    "kimi_k3": ("<|open|>call", '<|open|>call tool="f"<|sep|>', "<|open|>argument", "<|close|>call<|sep|>"),
    "laguna": _GLM,
    "longcat": ("<longcat_arg_key>", "</longcat_arg_key>", "<longcat_arg_value>", "</longcat_arg_value>"),
    "minicpm5": ('<function name="f">', '<param name="p">', "</param>", "</function>", "a:"),
    "minimax_m2": ("<invoke name=", "<parameter name=", "</invoke>", "</parameter>"),
    "mistral": ("f[ARGS]{", "f ", "[{", '"'),
    "muse_spark": ('<atem:invoke name="f">', '<atem:parameter name="p">', "</atem:invoke>"),
    "pythonic": ("[f(", "a='", "a=[", ")]", "{", "-", "lambda:"),
    "qwen3_coder": ("<function=", "<parameter=", "</function>", "</parameter>"),
}
"""The marks of each tool parser."""


def texts(parser: str, size: int) -> Iterator[str]:
    """Texts of about `size` characters each: every mark alone, every two in turns, runs of one before runs of
    another, all in turns, and no mark at all."""
    marks = MARKS[parser]
    pairs = [(one, other) for one in marks for other in marks if one != other]
    for unit in (*marks, *(one + other for one, other in pairs), "".join(marks), "a = b ", "\\n", "\n"):
        yield unit * (size // len(unit))
    for one, other in pairs:
        yield one * (size // 2 // len(one)) + other * (size // 2 // len(other))
