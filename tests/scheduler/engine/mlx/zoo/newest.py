"""`python -m tests.scheduler.engine.mlx.zoo.newest`: what would break with the newest mlx-lm.

Makes an environment of its own with the newest mlx-lm and mlx that the registry has and everything else as
pinned, runs the upstream contract tests and a sample of the zoo there against this working tree, and prints a
line for each thing that breaks. Status 0: nothing does. 1: something does. 2: there is no such environment.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree

from tests.repo.tree import ROOT
from tests.scheduler.engine.mlx.zoo.__main__ import kept_verdicts, table_row, unexpected
from tests.scheduler.engine.mlx.zoo.census import NO_MODELS, NOT_BUILT, modules

CONTRACTS = (
    "tests/scheduler/engine/mlx/upstream/test_upstream.py",
    "tests/scheduler/answer/test_mlx_lm_parts.py",
)
THE_PIN = "test_the_version_is_the_one_we_wrote_against"
"""Fails for every release but the pinned one, so it is left out."""
SAMPLE = (
    "qwen3",
    "deepseek_v3",
    "gpt_oss",
    "rwkv7",
    "qwen3_next",
    "recurrent_gemma",
    "falcon_h1",
    "mistral3+windows",
    "gpt_bigcode",
    "gemma3_text@bfloat16",
    "qwen3@affine4",
)
_ZOO = "tests.scheduler.engine.mlx.zoo"
_TEST_PACKAGES = ("pytest", "pytest-timeout", "hypothesis")
_NAME = re.compile(r"[\w.-]+")
_CENSUS = "import json; from tests.scheduler.engine.mlx.zoo.census import census; print(json.dumps(census()))"


class NoEnvironment(Exception):
    """The registry has no such release, or pip cannot install it with what Penstock needs."""


Pins: TypeAlias = dict[str, str]
"""Versions of mlx-lm and mlx by name."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the tests run with. `others`: requirements without mlx-lm and mlx; `pins`: those two."""

    others: tuple[str, ...]
    pins: Pins
    constraints: tuple[str, ...]


def requirements(project: str, constraints: str) -> Requirements:
    """Read the texts of pyproject.toml and constraints.txt."""
    table = tomllib.loads(project)["project"]
    extras = table["optional-dependencies"]
    tests = [one for one in extras["test"] if _named(one) in _TEST_PACKAGES]
    wanted: list[str] = [*table["dependencies"], *extras["cpu"], *tests]
    pins = {
        _named(one): one.partition("==")[2].partition(";")[0].strip()
        for one in wanted
        if _named(one) in ("mlx", "mlx-lm")
    }
    kept = [line for line in constraints.splitlines() if not line.startswith(("#", "mlx"))]
    return Requirements(tuple(one for one in wanted if _named(one) not in pins), pins, tuple(kept))


def _named(requirement: str) -> str:
    match = _NAME.match(requirement)
    return match.group() if match else ""


def _ran(command: Sequence[str | Path], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=folder, check=False
    )


def newest(python: Path, package: str) -> str:
    """The newest release that the configured registry has for this machine. Raises NoEnvironment."""
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--dry-run",
    ]
    found = _ran([*command, "--ignore-installed", "--no-deps", "--report", "-", package])
    if found.returncode:
        raise NoEnvironment(last_line(found.stderr))
    return str(json.loads(found.stdout)["install"][0]["metadata"]["version"])


def make(folder: Path, wanted: Requirements, mlx_lm: str, mlx: str | None) -> Path:
    """Return an environment's python; without `mlx` it has what this mlx-lm takes. Raises NoEnvironment."""
    venv.create(folder / "venv", with_pip=True, clear=True)
    python = folder / "venv" / "bin" / "python"
    (folder / "constraints.txt").write_text("\n".join(wanted.constraints) + "\n")
    backend = "" if sys.platform == "darwin" else "[cpu]"
    releases = [f"mlx-lm=={mlx_lm}", f"mlx{backend}" + (f"=={mlx}" if mlx else "")]
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = _ran([*install, "-c", folder / "constraints.txt", *wanted.others, *releases])
    if pinned.returncode:
        print(f"does not fit the constraints, tried without: {last_line(pinned.stderr)}")
        loose = _ran([*install, *wanted.others, *releases])
        if loose.returncode:
            raise NoEnvironment(last_line(loose.stderr))
    # For its metadata; the code is this working tree's.
    itself = _ran([*install, "--no-deps", "--editable", ROOT])
    if itself.returncode:
        raise NoEnvironment(last_line(itself.stderr))
    return python


def last_line(text: str) -> str:
    """Return the last line that a program wrote: usually the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["nothing was written"])[-1][:300]


def versions(python: Path) -> Pins:
    code = "from importlib.metadata import version as v; print(v('mlx-lm'), v('mlx'))"
    mlx_lm, mlx = _ran([python, "-c", code]).stdout.split()
    return {"mlx-lm": mlx_lm, "mlx": mlx}


def lines_of_modules(there: dict[str, str | None], here: Sequence[str]) -> Iterator[str]:
    """`there`: modules of the other release, with why each cannot be built; `here`: the pinned one's."""
    for name, error in there.items():
        new = "is new" if name not in here else "is known"
        if error is not None:
            yield f"module {name} {new}, and needs an entry or a reason: {error}"
    listed = set(here) | NO_MODELS.keys() | NOT_BUILT.keys()
    yield from (f"module {name} is gone" for name in sorted(listed - there.keys()))


def lines_of_report(report: str) -> Iterator[str]:
    """Yield each test that failed in pytest's JUnit report, with the first line of why."""
    for case in ElementTree.fromstring(report).iter("testcase"):
        for outcome in (*case.findall("failure"), *case.findall("error")):
            told = outcome.get("message") or ""
            if told == "collection failure":  # The file cannot be imported; the cause is in the text.
                told = last_line(outcome.text or told)
            message = told.strip().splitlines() or [""]
            yield f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}: {message[0][:160]}"


def _modules(python: Path) -> Iterator[str]:
    found = _ran([python, "-c", _CENSUS])
    if found.returncode:
        yield f"the zoo cannot be imported: {last_line(found.stderr)}"
        return
    there: dict[str, str | None] = json.loads(found.stdout.splitlines()[-1])
    yield from lines_of_modules(there, modules())
    for name in sorted(there.keys() - set(modules())):
        if there[name] is None:
            print(f"module {name} is new and needs no entry", flush=True)


def _contracts(python: Path, folder: Path) -> Iterator[str]:
    report = folder / "contracts.xml"
    report.unlink(missing_ok=True)
    command: list[str | Path] = [python, "-m", "pytest", "-q", "--continue-on-collection-errors"]
    command += [f"--junitxml={report}", "-k", f"not {THE_PIN}"]
    done = _ran([*command, *CONTRACTS])
    if done.returncode and not report.exists():
        yield f"the contract tests cannot be run: {last_line(done.stderr or done.stdout)}"
    else:
        yield from lines_of_report(report.read_text())


def _zoo(python: Path, folder: Path, names: Sequence[str]) -> Iterator[str]:
    """Without names all of it."""
    results = folder / "zoo.jsonl"
    done = _ran([python, "-m", _ZOO, "--again", "--results", results, *names])
    verdicts = kept_verdicts(results)
    if missing := [name for name in names if name not in verdicts] or (done.returncode and not verdicts):
        yield f"the zoo ended without {missing}: {last_line(done.stderr)}"
    for name in unexpected(verdicts):
        yield f"zoo, not as with the pinned release: {table_row(name, verdicts[name])}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the zoo; a sample by default")
    parser.add_argument("--whole", action="store_true", help="the whole zoo")
    parser.add_argument("--version", help="of mlx-lm, instead of the newest")
    parser.add_argument("--mlx", help="version of mlx: the newest that this mlx-lm takes by default")
    parser.add_argument("--folder", type=Path, help="where the environment is made; temporary by default")
    options = parser.parse_args(arguments)
    wanted = requirements((ROOT / "pyproject.toml").read_text(), (ROOT / "constraints.txt").read_text())
    with tempfile.TemporaryDirectory(prefix="penstock-newest-") as temporary:
        folder: Path = (options.folder or Path(temporary)).resolve()
        try:
            return _report(folder, wanted, options)
        except NoEnvironment as error:
            print(f"no environment with this release: {error}")
            return 2


def _report(folder: Path, wanted: Requirements, options: argparse.Namespace) -> int:
    mlx_lm = options.version or newest(Path(sys.executable), "mlx-lm")
    mlx = options.mlx or (None if options.version else newest(Path(sys.executable), "mlx"))
    if (mlx_lm, mlx) == (wanted.pins["mlx-lm"], wanted.pins["mlx"]):
        print(f"mlx-lm {mlx_lm} and mlx {mlx} are pinned, and nothing is newer")
        return 0
    python = make(folder, wanted, mlx_lm, mlx)
    tried = ", ".join(
        f"{name} {found} (pinned: {wanted.pins[name]})" for name, found in versions(python).items()
    )
    print(f"trying {tried}", flush=True)
    names = () if options.whole else tuple(options.names) or SAMPLE
    broken = 0
    for part in (_modules(python), _contracts(python, folder), _zoo(python, folder, names)):
        for line in part:
            print(line, flush=True)
            broken += 1
    print(f"{broken} things would break" if broken else "nothing would break")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
