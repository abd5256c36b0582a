"""What a unit starts: its variables, and all that it and its children print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli.errors import OperatorError
from api.cli.service.commands import run
from api.cli.service.service_options import Platform, places_of

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


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OperatorError, match="cannot write"):
        run.main(["--log-file", str(tmp_path / "file" / "penstock.log")], standalone_mode=False)


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [("PENSTOCK_MAX_SLOTS=none", 2, "--max-slots"), ("PENSTOCK_MAX_SLOT=4", 2, "PENSTOCK_MAX_SLOT")],
)
def test_the_environment_files_options_are_serves(
    tmp_path: Path, variables: str, code: int, said: str
) -> None:
    """Exit status 2, which systemd does not try again."""
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    here = Platform.of(sys.platform)
    file = places_of("penstock", here, system=False, environment=environment).environment
    file.parent.mkdir(parents=True)
    file.write_text(variables)
    file.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-m", "api", "service", "run", "--", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
