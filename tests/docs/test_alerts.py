"""The book names every alert, with its severity."""

from __future__ import annotations

import re
from pathlib import Path

from tests.grafana.expressions import alerts

_ROW = re.compile(r"^\| `(\w+)` \| (page|warn) \| \w.+ \|$", re.MULTILINE)


def test_each_alert_has_its_row() -> None:
    rows = _ROW.findall(Path("docs/operating.md").read_text())
    assert rows == [(alert["alert"], alert["labels"]["severity"]) for alert in alerts()]
