"""What litellm and Strands make of errors, by their own functions: a line for each that is given."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import anthropic
import httpx
import litellm
import openai
from litellm.litellm_core_utils.exception_mapping_utils import exception_type
from litellm.llms.anthropic.common_utils import AnthropicError
from litellm.llms.openai.common_utils import OpenAIError

litellm.suppress_debug_info = True
# The package imports what is not installed here.
_FILE = importlib.metadata.distribution("strands-agents").locate_file("strands/models/_openai_errors.py")
_spec = importlib.util.spec_from_file_location("strands_errors", str(_FILE))
strands = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(strands)


def raised(status: int, body: dict, sdk: object) -> Exception:
    request = httpx.Request("POST", "http://127.0.0.1:9")
    return sdk._make_status_error_from_response(httpx.Response(status, json=body, request=request))


def of_litellm(error: Exception, provider: str) -> str:
    try:
        exception_type(model="tiny", original_exception=error, custom_llm_provider=provider)
    except Exception as mapped:
        return type(mapped).__name__
    return "nothing"


for name, status, body, anthropic_status, anthropic_body in json.loads(sys.argv[1]):
    error = raised(status, body, openai.OpenAI(api_key="x"))
    said = raised(anthropic_status, anthropic_body, anthropic.Anthropic(api_key="x"))
    line = {
        "error": name,
        "openai": type(error).__name__,
        "litellm": of_litellm(OpenAIError(status, str(error), body=error.body), "openai"),
        "strands": strands.classify_openai_error(error),
        "anthropic": type(said).__name__,
        "litellm, anthropic": of_litellm(AnthropicError(anthropic_status, said.response.text), "anthropic"),
    }
    print(json.dumps(line))
