"""Writes `dashboards/*.json` from `boards/`; a test compares them with the committed files."""

from __future__ import annotations

from pathlib import Path

from grafana.boards import DASHBOARDS

FOLDER = Path(__file__).parent / "dashboards"


def main() -> None:
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.name}.json").write_text(dashboard.json(), "utf-8")


if __name__ == "__main__":
    main()
