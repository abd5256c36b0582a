"""What operators read of a scripted run: names, types, labels, help and values, exactly as they are kept."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.api.admin.figures_run import FOLDER, figures


def test_every_figure_is_as_it_was() -> None:
    """Names and labels are an interface. `python -m tests.api.admin.figures_run` writes the files anew;
    say in the commit why they changed."""
    kept = {file.name: file.read_text() for file in FOLDER.iterdir()}
    assert figures() == kept


def test_a_field_that_is_added_is_found_everywhere() -> None:
    """Who adds a number edits one place. A counter goes on over the engine's two lives, three steps each; a
    gauge is the present life's."""
    command = [sys.executable, "-m", "tests.api.admin.added_figure"]
    ended = subprocess.run(command, capture_output=True, check=True, text=True)
    found = json.loads(ended.stdout.splitlines()[-1])
    labels = '{engine="0",model="tiny"}'
    for line in (
        "# HELP penstock_added_total Said once.",
        "# TYPE penstock_added_total counter",
        f"penstock_added_total{labels} 18.0",
        "# TYPE penstock_added_gauge gauge",
        f"penstock_added_gauge{labels} 5.0",
        'vllm:added_total{engine="0",model_name="tiny"} 18.0',
    ):
        assert line in found["metrics"]
    assert "| `penstock_added_total` | Said once. |" in found["table"]
    assert "| `penstock_added_gauge` | Once, too. |" in found["table"]
    assert found["live"]["added_live"] == 18
    assert [engine["gauge_live"] for engine in found["live"]["engines"]] == [5]
    assert sum(found["history"]["added_history"]) == 18
