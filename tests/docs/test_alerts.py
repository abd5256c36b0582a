"""The book names every alert, by its severity."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.grafana.expressions import alerts


@pytest.mark.parametrize("severity", ["page", "warn"])
def test_each_alert_is_named(severity: str) -> None:
    named = (
        Path("docs/operating.md").read_text().split(f"- **{severity}**:")[1].split("\n-")[0].split("\n\n")[0]
    )
    wanted = [alert["alert"] for alert in alerts() if alert["labels"]["severity"] == severity]
    assert re.findall(r"`(\w+)`", named) == wanted
