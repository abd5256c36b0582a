"""An engine whose memory limit changes while it runs, with a real model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.engine.device import Device
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.loaded_model import LoadedModel
from tests.contracts.check_memory_limit import (
    CHUNK,
    MACHINE_TOKENS,
    MAX_ROWS,
    MEMORY_LIMIT_CHECKS,
    MakeLimited,
    limit_of,
)
from tests.contracts.journal import kv_bytes, prefixes_of
from tests.fakes.fake_device import FakeDevice
from tests.scheduler.engine.mlx.conftest import Tiny
from tests.scheduler.engine.mlx.loads import load_of


class _Metered(MlxBackend):
    """On a device that has nothing but its rows and prefixes: a process's footprint would hide them."""

    fake: FakeDevice

    @property
    def device(self) -> Device:
        return self.fake


def _backend(tiny: Tiny, kv_tokens: int) -> _Metered:
    load = load_of(tiny.folder, max_slots=MAX_ROWS, prefill_chunk_tokens=CHUNK)
    limit = limit_of(tiny.row_bytes.token_bytes, kv_tokens)
    backend = _Metered(LoadedModel(tiny.model, tiny.ready, tiny.row_bytes, limit), load)
    prefixes = prefixes_of(backend)
    held = lambda: kv_bytes(backend) + prefixes.nbytes  # noqa: E731
    backend.fake = FakeDevice(MACHINE_TOKENS * tiny.row_bytes.token_bytes, held_bytes=held)
    return backend


@pytest.mark.parametrize("check", MEMORY_LIMIT_CHECKS)
def test_contract(check: Callable[[MakeLimited], None], tiny: Tiny) -> None:
    check(lambda kv_tokens: _backend(tiny, kv_tokens))
