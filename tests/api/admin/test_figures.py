"""What operators read of a scripted run: names, types, labels, help and values, exactly as they are kept."""

from __future__ import annotations

from tests.api.admin.figures_run import FOLDER, figures


def test_every_figure_is_as_it_was() -> None:
    """Names and labels are an interface. `python -m tests.api.admin.figures_run` writes the files anew;
    say in the commit why they changed."""
    kept = {file.name: file.read_text() for file in FOLDER.iterdir()}
    assert figures() == kept
