"""Which engine may join its pool."""

from __future__ import annotations

import msgspec
import pytest

from scheduler.engines.compatibility import refusal
from scheduler.shared.messages import PROTOCOL_VERSION, Ready

FIRST = Ready(
    PROTOCOL_VERSION, "Metal", "qwen3", 8192, 64, 0, "bfloat16", fingerprint="ab" * 32, host="mac-1"
)


def other(**fields: object) -> Ready:
    return msgspec.structs.replace(FIRST, host="mac-2", **fields)


@pytest.mark.parametrize(
    "fields", [{}, {"device": "CUDA"}, {"kv_bytes_per_token": 128}, {"memory_limit_bytes": 7}]
)
def test_machines_may_differ(fields: dict[str, object]) -> None:
    assert refusal(FIRST, other(**fields)) == ""


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"fingerprint": "cd" * 32}, "model cdcdcdcdcdcd, not abababababab"),
        ({"vocabulary": 9}, "vocabulary 9, not 8192"),
        ({"weights_dtype": "float16"}, "weights dtype float16, not bfloat16 (one for all: --weights-dtype)"),
        (
            {"vocabulary": 9, "weights_dtype": "float16"},
            "vocabulary 9, not 8192; weights dtype float16, not bfloat16 (one for all: --weights-dtype)",
        ),
    ],
)
def test_what_would_change_tokens_is_refused_by_name(fields: dict[str, object], difference: str) -> None:
    assert refusal(FIRST, other(**fields)) == (
        f"the engine on mac-2 is unlike this pool's, whose first one runs on mac-1: {difference}"
    )
