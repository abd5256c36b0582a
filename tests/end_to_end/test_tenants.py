"""What one tenant can discover of another's prompts, and what an operator reads at the start."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.end_to_end.serving import Served, serving

SCRIPTED = ("--engine", "scripted")
SECRET = "The code of the drone is 4711, and nobody but us may know it."
LONG_HIT_TOKENS = 20


def cached_tokens(served: Served, text: str, headers: dict[str, str]) -> int:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    request = Request(
        served.url + "/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", **headers},
    )
    with urlopen(request, timeout=30) as answer:
        usage: Any = json.loads(answer.read())["usage"]
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    return cached


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("options", "alice", "bob"),
    [
        (("--api-key", "alice:a,bob:b"), bearer("a"), bearer("b")),
        (("--tenant-header", "x-tenant"), {"x-tenant": "alice"}, {"x-tenant": "bob"}),
    ],
)
def test_a_tenant_cannot_read_anothers_prompt_by_its_cached_tokens(
    options: tuple[str, ...], alice: dict[str, str], bob: dict[str, str]
) -> None:
    """A right guess of it, whole or in part, is never a prefix hit, while its owner hits all of it."""
    with serving(*SCRIPTED, *options) as served:
        assert any("within a tenant" in line for line in served.log), served.log
        assert cached_tokens(served, SECRET, alice) == 0
        assert cached_tokens(served, SECRET, bob) == 0
        assert cached_tokens(served, SECRET, alice) > LONG_HIT_TOKENS


def test_sharing_with_all_is_the_operators_choice() -> None:
    with serving(*SCRIPTED, "--api-key", "alice:a,bob:b", "--cache-sharing", "all") as served:
        assert any("by everybody" in line for line in served.log), served.log
        assert cached_tokens(served, SECRET, bearer("a")) == 0
        assert cached_tokens(served, SECRET, bearer("b")) > LONG_HIT_TOKENS


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (("--host", "0.0.0.0"), True),
        (("--host", "0.0.0.0", "--api-key", "secret"), False),
        ((), False),
    ],
)
def test_a_server_open_to_the_network_says_so(options: tuple[str, ...], warned: bool) -> None:
    with serving(*SCRIPTED, *options) as served:
        assert sum('"event": "no_api_keys"' in line for line in served.log) == warned, served.log
