"""What a unit starts: its variables, and all that it and its children print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli.errors import OperatorError
from api.cli.service import installation
from api.cli.service.commands import run
from api.cli.service.service_options import Platform, ServiceOptions, places_of

PROGRAM = """
import subprocess, sys
from pathlib import Path
from api.rotating_log import RotatingLog, print_into
print_into(RotatingLog(Path(sys.argv[1]), 4096, 3))
print("out")
subprocess.run(["sh", "-c", "echo of a child; echo its error >&2"])
for number in range(1000):
    print(f"line {number}")
print("no newline", end="", flush=True)
raise SystemExit("last words")
"""


def test_everything_is_in_the_log(tmp_path: Path) -> None:
    """Also what is said at the very end, and by children; files begin with whole lines."""
    log = tmp_path / "logs" / "penstock.log"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log)], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
    files = [
        path
        for path in (log.with_name("penstock.log.2"), log.with_name("penstock.log.1"), log)
        if path.exists()
    ]
    assert set(log.parent.iterdir()) == set(files)
    lines = b"".join(path.read_bytes() for path in files).decode().splitlines()
    assert lines[-1] == "no newlinelast words"
    numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
    assert numbers == list(range(numbers[0], 1000))


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "Library").touch()
    with pytest.raises(OperatorError, match=r"cannot write .*penstock\.log"):
        run.main([], standalone_mode=False)


_OF_VERSION_0_2 = ("--log-file", "x.log", "--log-bytes", "10485760", "--log-files", "5", "--", "--port", "0")
"""What its units say behind the name. They are started until the next `restart` writes them anew."""


@pytest.mark.parametrize("rest", [(), _OF_VERSION_0_2], ids=["now", "0.2"])
@pytest.mark.parametrize(
    ("variables", "said"),
    [("PENSTOCK_MAX_SLOTS=none", "--max-slots"), ("PENSTOCK_MAX_SLOT=4", "PENSTOCK_MAX_SLOT")],
)
def test_the_environment_files_options_are_serves(
    tmp_path: Path, variables: str, said: str, rest: tuple[str, ...]
) -> None:
    """Exit status 2, which systemd does not try again."""
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    here = Platform.LAUNCHD if sys.platform == "darwin" else Platform.SYSTEMD
    places = places_of("penstock", here, system=False, environment=environment)
    options = ServiceOptions(program=("/usr/bin/env",), arguments=("--port", "0"), platform=here)
    installation.write(installation.plan(options, places, dict([variables.split("=")])), None)
    done = subprocess.run(
        [sys.executable, "-m", "api", "service", "run", *rest],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    shown = places.log.read_text() if here is Platform.LAUNCHD else done.stderr
    assert (done.returncode, said in shown) == (2, True), shown
