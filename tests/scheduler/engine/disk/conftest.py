"""A tier on a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.engine.disk.disk_tier import DiskTier
from tests.scheduler.engine.disk.disk_contents import MODEL, PLENTY, SOON


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    tier = DiskTier(tmp_path, MODEL, PLENTY)
    yield tier
    tier.close(SOON)
