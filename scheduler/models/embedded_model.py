"""Where the model lies that `penstock serve` serves without `--model`. How it was made: `training/`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

EMBEDDED_FOLDER: Final = Path(__file__).parent / "embedded"
"""Part of the package, and served from there: nothing is downloaded, made or copied at the first start."""
