"""Stands in for `launchctl` as a program: what it knows is in the folder of FAKE_LAUNCHCTL.

`domains`: those that this machine has. `drain`: how often `print` still knows a job after `bootout` has
returned. `refusals`: exit codes of the next bootstraps. `calls`: what was asked of it. `job`: target of the
loaded one, how many such prints are left (-1: it was not booted out), and its process, where the plist is
there to be read: that one is started, and has SIGTERM to end with. None is started again.
"""

from __future__ import annotations

import os
import plistlib
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

FOLDER = Path(os.environ["FAKE_LAUNCHCTL"])
PRINT = (Path(__file__).parent / "launchctl-print.txt").read_text()
NO_PROCESS = 4242
"""The one of the print."""


def fail(code: int, text: str) -> None:
    print(f"{text} failed: {code}", file=sys.stderr)
    sys.exit(code)


def read(name: str) -> list[str]:
    path = FOLDER / name
    return path.read_text().split() if path.exists() else []


def started(plist: Path) -> int:
    if not plist.exists():
        return NO_PROCESS
    job = plistlib.loads(plist.read_bytes())
    with open(job["StandardErrorPath"], "ab") as crash:
        command = job["ProgramArguments"]
        process = subprocess.Popen(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=crash, stderr=crash, start_new_session=True
        )
    return process.pid


def runs(pid: int) -> bool:
    """Whether it has not ended: nobody may have waited for it."""
    said = subprocess.run(["ps", "-p", str(pid), "-o", "stat="], capture_output=True, text=True, check=False)
    return bool(said.stdout.strip()) and not said.stdout.startswith("Z")


def write_job(target: str, left: int, pid: int) -> None:
    (FOLDER / "job").write_text(f"{target} {left} {pid}")


def main() -> None:
    verb, *arguments = sys.argv[1:]
    with (FOLDER / "calls").open("a") as calls:
        print(verb, *arguments, file=calls)
    target, number, process = read("job") or ["", "-1", "0"]
    left, pid = int(number), int(process)
    if target and left == 0 and (pid == NO_PROCESS or not runs(pid)):
        (FOLDER / "job").unlink()
        target = ""
    match verb:
        case "bootstrap":
            domain, plist = arguments
            if domain not in read("domains"):
                fail(125, "Bootstrap")
            if refusals := read("refusals"):
                (FOLDER / "refusals").write_text(" ".join(refusals[1:]))
                fail(int(refusals[0]), "Bootstrap")
            if target:
                fail(5 if left < 0 else 37, "Bootstrap")
            write_job(f"{domain}/{Path(plist).stem}", -1, started(Path(plist)))
        case "bootout":
            if target != arguments[0]:
                fail(3, "Boot-out")
            write_job(target, int("".join(read("drain")) or 0), pid)
            if pid != NO_PROCESS:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            fail(36, "Boot-out")
        case "print":
            if target != arguments[0]:
                fail(113, "Could not find service")
            if left > 0:
                write_job(target, left - 1, pid)
            text = PRINT.replace(f"pid = {NO_PROCESS}", f"pid = {pid}")
            if pid != NO_PROCESS and not runs(pid):
                text = text.replace(f"\tpid = {pid}\n", "").replace(
                    "\tstate = running", "\tstate = not running", 1
                )
            print(text)


main()
