"""Writes `dashboards/*.json` from `boards/`; a test holds them to be what is committed."""

from __future__ import annotations

import json
from pathlib import Path

from grafana.boards import DASHBOARDS
from grafana.dashboard import Dashboard

FOLDER = Path(__file__).parent / "dashboards"


def text_of(dashboard: Dashboard) -> str:
    return json.dumps(dashboard.json(), indent=1) + "\n"


def main() -> None:
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.name}.json").write_text(text_of(dashboard), "utf-8")


if __name__ == "__main__":
    main()
