"""Stands in for `launchctl` as a program: what it knows is in the folder of FAKE_LAUNCHCTL.

`domains`: those that this machine has. `drain`: how often `print` still knows a job after `bootout` has
returned. `refusals`: exit codes of the next bootstraps. `calls`: what was asked of it. `job`: target of the
loaded one, and how many such prints are left (-1: it was not booted out).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = Path(os.environ["FAKE_LAUNCHCTL"])


def fail(code: int, text: str) -> None:
    print(f"{text} failed: {code}", file=sys.stderr)
    sys.exit(code)


def read(name: str) -> list[str]:
    path = FOLDER / name
    return path.read_text().split() if path.exists() else []


def write_job(target: str, left: int) -> None:
    (FOLDER / "job").write_text(f"{target} {left}")


def main() -> None:
    verb, *arguments = sys.argv[1:]
    with (FOLDER / "calls").open("a") as calls:
        print(verb, *arguments, file=calls)
    target, number = read("job") or ["", "-1"]
    left = int(number)
    if target and left == 0:
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
            write_job(f"{domain}/{Path(plist).stem}", -1)
        case "bootout":
            if target != arguments[0]:
                fail(3, "Boot-out")
            write_job(target, int("".join(read("drain")) or 0))
            fail(36, "Boot-out")
        case "print":
            if target != arguments[0]:
                fail(113, "Could not find service")
            if left > 0:
                write_job(target, left - 1)


main()
