"""Parts of a measurement: in order, each within its time, and what is kept when a process ends or hangs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from loadtests.device.parts import Measurement

_CHILD = """
import os, signal, sys, time
from pathlib import Path
from loadtests.device import parts
from loadtests.device.finding import Finding
record = Path(sys.argv[1])
parts.describe(record, {"device": "M9"})
for name in sys.argv[2:]:
    parts.begin(record, name, name.upper(), "")
    parts.note(record, Finding(f"{name} began", "right"))
    if name == "hangs":
        time.sleep(600)
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "raises":
        sys.exit(3)
    parts.end(record, name)
"""


def _measurement(
    folder: Path, names: dict[str, float], seconds: float = 60.0, child: str = _CHILD
) -> Measurement:
    record = folder / "device.jsonl"
    return Measurement(
        [sys.executable, "-c", child, str(record)], os.environ, folder, "tiny", True, seconds, names
    )


def test_a_part_that_hangs_or_ends_its_process_is_recorded_and_the_next_goes_on(tmp_path: Path) -> None:
    names = {"one": 30.0, "hangs": 0.5, "dies": 30.0, "raises": 30.0, "last": 30.0}
    made = _measurement(tmp_path, names).run()
    judged = {
        section.title: [(finding.judgement, finding.detail) for finding in section.findings]
        for section in made.sections
    }
    assert judged["ONE"] == judged["LAST"] == [("right", "")]
    assert judged["HANGS"][0] == judged["DIES"][0] == ("right", ""), "what it had found is kept"
    assert judged["HANGS"][1][1].startswith("not done after ")
    assert judged["DIES"][1] == ("raised", "the process ended with -9")
    assert judged["RAISES"][1] == ("raised", "the process ended with 3")
    assert made.machine == {"device": "M9"}
    assert "# Penstock on M9" in (tmp_path / "device.md").read_text()
