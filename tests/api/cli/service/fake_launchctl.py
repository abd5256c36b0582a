"""Stands in for `launchctl` as a program: what it knows is in the folder of FAKE_LAUNCHCTL.

`domains`: those that this machine has. `drain`: seconds that a job runs on after `bootout` has returned.
`refusals`: exit codes of the next bootstraps. `calls`: what was asked of it. `job`: the loaded one's target,
and when it will have ended.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_LAUNCHCTL"])
PRINT = Path(__file__).parent / "launchctl-print.txt"


def fail(code: int, text: str) -> None:
    print(f"{text} failed: {code}", file=sys.stderr)
    sys.exit(code)


def read(name: str) -> list[str]:
    path = FOLDER / name
    return path.read_text().split() if path.exists() else []


def main() -> None:
    verb, *arguments = sys.argv[1:]
    with (FOLDER / "calls").open("a") as calls:
        print(verb, *arguments, file=calls)
    target, ends = read("job") or ["", "inf"]
    if target and time.time() > float(ends):
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
                fail(37 if ends != "inf" else 5, "Bootstrap")
            (FOLDER / "job").write_text(f"{domain}/{Path(plist).stem} inf")
        case "bootout":
            if target != arguments[0]:
                fail(3, "Boot-out")
            (FOLDER / "job").write_text(f"{target} {time.time() + float(read('drain')[0])}")
            fail(36, "Boot-out")
        case "print":
            if target != arguments[0]:
                fail(113, "Could not find service")
            print(PRINT.read_text())


main()
