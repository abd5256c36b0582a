"""The process's own peak of resident memory."""

from __future__ import annotations

import mmap

import pytest

from scheduler.engine.budget.readings import host_memory, restart_host_peak, return_free_blocks

_BYTES = 64 << 20


def test_the_peak_is_that_since_it_was_restarted() -> None:
    if restart_host_peak() is None:
        pytest.skip("the system does not measure it")
    resident = host_memory().resident
    # Not from the C heap, which may have that much of freed memory.
    with mmap.mmap(-1, _BYTES) as held:
        held.write(b"x" * _BYTES)
        assert host_memory().peak - resident > _BYTES // 2
    again = restart_host_peak()
    assert again is not None
    assert host_memory().peak - again < _BYTES // 2


def test_freed_blocks_go_back() -> None:
    """Many small ones, which the C heap keeps."""
    if not host_memory().resident:
        pytest.skip("the system does not measure it")
    blocks = [bytes(1000) for _ in range(_BYTES // 1000)]
    before = host_memory().resident
    del blocks
    return_free_blocks()
    assert host_memory().resident <= before
