"""The model for tests, `--model embedded`. README.md has how it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Final

EMBEDDED_NAME: Final = "penstock-embedded"
"""Its name in requests."""
EMBEDDED_FOLDER: Final = Path(__file__).parent / "embedded"
"""Part of the package, and served from there: nothing is downloaded, generated or copied at the first
start."""
