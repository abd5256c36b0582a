"""`make packages`: wheel and sdist as users install them, each in an environment and a home of its own.

Not a test, because each installation takes most of a minute: by pip, with an empty home and an environment
cleared of everything but the package index. Each must serve the embedded model and answer from it. Without an
extra, on Linux, `serve` must say in one line which one to install. Prints what each took, and exits 1
if one failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
_KEPT = re.compile(r"PIP_.*|UV_.*|SSL_CERT_.*|.*_proxy", re.IGNORECASE)
_SECONDS = 900.0
_QUESTION = [
    {"role": "system", "content": "The code of drone 17 is K4Q-9. The code of drone 71 is B2X-4."},
    {"role": "user", "content": "What is the code of drone 17?"},
]


class Failed(Exception):
    """One line for the report."""


@dataclass(frozen=True, slots=True)
class Place:
    """An empty home, and the environment of a user who has just come."""

    home: Path

    @property
    def environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
        # Elsewhere pip reads its index from the home that is hidden here.
        path = f"{self.home / '.local' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return {**kept, "HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8"}

    def run(self, *command: str | Path) -> str:
        """Return what it printed. Raise Failed."""
        done = _ended(self, *command)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["?"])[-1]
            raise Failed(f"{Path(command[0]).name} {command[1]} ended with {done.returncode}: {last}")
        return done.stdout


def installed(place: Place, package: str) -> Path:
    """Return the program."""
    place.run(sys.executable, "-m", "venv", place.home / "venv")
    place.run(place.home / "venv/bin/python", "-m", "pip", "install", "--quiet", package)
    return place.home / "venv/bin/penstock"


def built() -> tuple[Path, Path]:
    """Return wheel and source distribution, the wheel made from the checkout."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", DIST], cwd=ROOT, check=True)
    wheels, sources = sorted(DIST.glob("*.whl")), sorted(DIST.glob("*.tar.gz"))
    return wheels[-1], sources[-1]


@contextmanager
def serving(place: Place, program: Path) -> Iterator[str]:
    """Yield the server's address."""
    command = [str(program), "serve", "--model", "embedded", "--port", "0"]
    process = subprocess.Popen(
        command,
        env=dict(place.environment),
        cwd=place.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    last = "without a word"
    try:
        for line in process.stdout:
            last = line.rstrip()
            if found := re.match(r"listening +(http://\S+)", line):
                yield found[1]
                return
        raise Failed(f"serve ended: {last}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def answer(url: str) -> str:
    body = json.dumps({"messages": _QUESTION, "max_tokens": 32, "temperature": 0}).encode()
    request = Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
    with urlopen(request, timeout=120) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def check(package: Path, extra: str) -> str:
    """Install, serve, ask; return the line for the report. Raise Failed."""
    with tempfile.TemporaryDirectory(prefix="penstock-home-") as folder:
        place = Place(Path(folder))
        began = time.monotonic()
        program = installed(place, f"penstock[{extra}] @ {package.as_uri()}" if extra else str(package))
        seconds = f"installed in {time.monotonic() - began:.0f} s"
        version = place.run(program, "--version").strip()
        if not extra and sys.platform.startswith("linux"):
            return f"{version}; {_refusal(place, program)}"
        doctor = place.run(program, "doctor", "--port", str(_free_port()))
        started = time.monotonic()
        with serving(place, program) as url:
            ready = time.monotonic()
            if "K4Q-9" not in (text := answer(url)):
                raise Failed(f"it answers {text!r}")
        seconds += f", ready in {ready - started:.0f} s"
        notes = re.findall(r"^note +(.+)", doctor, re.M)
        return f"{version}; {seconds}; answers {text!r}; doctor: {'; '.join(notes) or 'nothing to note'}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _refusal(place: Place, program: Path) -> str:
    """Without a back end."""
    ended = _ended(place, program, "serve", "--port", "0")
    said = ended.stderr.strip().splitlines()
    if ended.returncode != 1 or len(said) != 1 or "penstock[cpu]" not in said[0]:
        raise Failed(f"without an extra serve ended with {ended.returncode} and said {said}")
    return said[0]


def _ended(place: Place, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        env=dict(place.environment),
        cwd=place.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--extra", default="cpu" if sys.platform.startswith("linux") else "")
    given = parser.parse_args()
    wheel, source = built()
    runs = [(wheel, given.extra), (source, given.extra)]
    if sys.platform.startswith("linux"):
        runs.append((wheel, ""))
    failures = 0
    for package, extra in runs:
        kind = "wheel" if package.suffix == ".whl" else "sdist"
        try:
            line = check(package, extra)
        except (Failed, subprocess.SubprocessError, OSError) as error:
            line, failures = f"FAILED: {error}", failures + 1
        print(f"{kind} {f'[{extra}]' if extra else '(no extra)'}: {line}", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
