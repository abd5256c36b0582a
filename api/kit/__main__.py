"""`python -m api.kit --python 3.12 --backend cuda13 --out FOLDER`: make a kit; `make kit` calls it.

FOLDER/1/, 2/, ...   wheels, or parts of wheels, at most 60 MB in each
FOLDER/install.py    joins, checks and installs them: Python and pip alone
FOLDER/kit.json      for which Python, back end and version of Penstock
FOLDER/SHA256SUMS
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.utils import parse_wheel_filename

from api.kit.gather import CUDA_LIBRARIES, Target, gather, pins
from api.kit.pieces import cut, write_sums

ROOT = Path(__file__).parents[2]


def make(target: Target, backend: str, cuda: bool, out: Path, piece_bytes: int) -> int:
    """Write the kit into a folder that is empty or not there, and return how many pieces it has. `cuda`: with
    NVIDIA's libraries."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise SystemExit(f"{out} is not empty")
    with tempfile.TemporaryDirectory() as folder:
        own = own_wheel(Path(folder) / "own")
        fetched = Path(folder) / "fetched"
        without = "" if cuda else CUDA_LIBRARIES
        wheels = gather(own, backend, target, pins(ROOT / "constraints.txt"), without, fetched)
        return write(
            wheels, {"python": target.python, "machine": target.machine, "backend": backend}, out, piece_bytes
        )


def write(wheels: list[Path], facts: dict[str, str], out: Path, piece_bytes: int) -> int:
    """Write the kit of these wheels, Penstock's own last, and return how many pieces it has."""
    _, version, *_ = parse_wheel_filename(wheels[-1].name)
    pieces = cut(wheels, out, piece_bytes)
    (out / "kit.json").write_text(json.dumps({"penstock": str(version), **facts}, indent=1) + "\n")
    shutil.copyfile(Path(__file__).with_name("install.py"), out / "install.py")
    write_sums(out)
    return pieces


def own_wheel(folder: Path) -> Path:
    """Build Penstock's wheel, which has the embedded model in it."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a kit for an installation without a network.")
    parser.add_argument("--python", required=True, metavar="3.12")
    parser.add_argument("--backend", required=True, choices=("cpu", "cuda12", "cuda13"))
    parser.add_argument("--cuda", action="store_true", help="with NVIDIA's libraries (about 2 GB)")
    parser.add_argument("--machine", default="x86_64", choices=("x86_64", "aarch64"))
    parser.add_argument("--piece-megabytes", type=int, default=60)
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    target = Target(given.python, given.machine)
    pieces = make(target, given.backend, given.cuda, given.out, given.piece_megabytes * 1_000_000)
    print(
        f"{given.out}: {pieces} pieces; there: python{given.python} {given.out.name}/install.py ENVIRONMENT"
    )


if __name__ == "__main__":
    main()
