"""DeepSeek V3.2's tool calls. mlx-lm renders this format (`chat_templates/deepseek_v32.py`) but has no
parser for it.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter></｜DSML｜invoke>
    </｜DSML｜function_calls>
"""

from __future__ import annotations

import json
import sys
from typing import Any

import regex as re

from scheduler.answer.bounded_regex import limit_module

_TOKEN = "｜DSML｜"
tool_call_start = f"<{_TOKEN}function_calls>"
tool_call_end = f"</{_TOKEN}function_calls>"

_INVOKE = re.compile(rf'<{_TOKEN}invoke name="([^"]+)">(.*?)</{_TOKEN}invoke>', re.DOTALL)
_PARAMETER = re.compile(
    rf'<{_TOKEN}parameter name="([^"]+)" string="(true|false)">(.*?)</{_TOKEN}parameter>', re.DOTALL
)


def parse_tool_call(text: str, tools: Any = None) -> list[dict[str, Any]]:
    """Return the calls of one block. Raise ValueError if one is incomplete or has invalid JSON."""
    if _INVOKE.sub("", text).strip():
        raise ValueError("a call is not whole")
    return [{"name": name, "arguments": _arguments(body)} for name, body in _INVOKE.findall(text)]


def _arguments(body: str) -> dict[str, Any]:
    if _PARAMETER.sub("", body).strip():
        raise ValueError("a parameter is not whole")
    return {
        name: value if is_string == "true" else json.loads(value)
        for name, is_string, value in _PARAMETER.findall(body)
    }


limit_module(sys.modules[__name__])
