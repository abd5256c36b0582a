"""Allowed imports: the layers that DESIGN.md describes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import pytest

from api.cli.command_line import penstock
from tests.repo.tree import ROOT, imports, modules, name_of

ENGINE_MAY_SEE = ("scheduler.errors", "scheduler.shared", "scheduler.engine")
"""What the engine process may import from this project."""

MAY_SEE_THE_ENGINE = {
    "scheduler.engine.join": ("api/cli/", "scheduler/cluster/ray_engines.py"),  # these start an engine
    "scheduler.engine.mlx.cpu.fast_blas": ("api/assembly.py", "api/cli/"),  # before MLX is loaded
    "scheduler.engine.budget": ("api/cli/", "scheduler/fleet/"),  # how much fits
    "scheduler.engine": ("api/cli/machine.py",),  # run as a program of its own
}
"""What the server's process may import of the engine, and where."""


MAY_IMPORT_MLX = (
    "scheduler/engine/mlx/",
    "loadtests/device/",
    "loadtests/step/",
    "loadtests/chaos/device_faults.py",
    "loadtests/chaos/saboteur/sitecustomize.py",
)


def _wrong(paths: Iterable[Path], forbidden: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Return each file with an import that it may not have."""
    return [(name_of(path), imported) for path in paths for imported in imports(path) if forbidden(imported)]


def _of(*packages: str) -> Callable[[str], bool]:
    """Return whether an import is of one of these packages."""
    return lambda imported: imported.split(".")[0] in packages


def _within(imported: str, name: str) -> bool:
    return imported == name or imported.startswith(name + ".")


def test_the_scheduler_knows_nothing_of_http() -> None:
    """Dependencies point from api to scheduler."""
    assert not _wrong(modules("scheduler"), _of("api", "fastapi", "starlette", "h11", "tests", "loadtests"))


def test_the_product_knows_nothing_of_load_tests() -> None:
    """But for the name of `penstock bench`'s module."""
    assert not _wrong(modules("api"), _of("loadtests", "tests"))


def test_the_engine_sees_messages_and_no_more_of_the_server() -> None:
    """No trio, and of our own modules only those that both sides need."""

    def forbidden(imported: str) -> bool:
        ours = _within(imported, "scheduler")
        return _of("trio")(imported) or (ours and not any(_within(imported, name) for name in ENGINE_MAY_SEE))

    assert not _wrong(modules("scheduler/engine"), forbidden)


def test_only_the_engine_touches_mlx() -> None:
    """In one folder (load tests may drive a bare model, or run in an engine process)."""
    others = [path for path in _everything() if not name_of(path).startswith(MAY_IMPORT_MLX)]
    assert not _wrong(others, _of("mlx", "mlx_lm"))


def test_one_file_touches_ray() -> None:
    """It takes SIGTERM and 25 threads in whichever process imports it."""
    others = [path for path in _everything() if name_of(path) != "scheduler/cluster/ray_engines.py"]
    assert not _wrong(others, _of("ray"))


def test_the_server_sees_little_of_the_engine() -> None:
    wrong = []
    for path in modules("scheduler") + modules("api"):
        if "engine" in path.parts:
            continue
        for imported in imports(path):
            if (imported + ".").startswith("scheduler.engine."):
                rule = max((name for name in MAY_SEE_THE_ENGINE if imported.startswith(name)), key=len)
                if not name_of(path).startswith(MAY_SEE_THE_ENGINE[rule]):
                    wrong.append((name_of(path), imported))
    assert not wrong


def test_what_both_share_needs_neither() -> None:
    def forbidden(imported: str) -> bool:
        allowed = imported == "scheduler.errors" or imported.startswith("scheduler.shared.")
        return imported.startswith("scheduler") and not allowed

    assert not _wrong(modules("scheduler/shared"), forbidden)


def _everything() -> list[Path]:
    return modules("scheduler") + modules("api") + modules("loadtests")


def _folders() -> list[str]:
    roots = [ROOT / "scheduler", ROOT / "api"]
    folders = {path.parent for root in roots for path in root.rglob("*.py")}
    return sorted(str(path.relative_to(ROOT)) for path in folders)


@pytest.mark.parametrize("folder", _folders())
def test_packages_form_no_cycle(folder: str) -> None:
    """Each file and each sub-package of a folder is a node; the imports between them are acyclic, at every
    depth."""
    root = ROOT / folder
    files = list(root.rglob("*.py"))
    arrows: dict[str, set[str]] = {}
    for path in files:
        node = path.relative_to(root).parts[0].removesuffix(".py")
        arrows.setdefault(node, set()).update(
            target for target in _siblings(path, folder.replace("/", ".")) if target != node
        )
    while free := [node for node, targets in arrows.items() if not targets & arrows.keys()]:
        for node in free:
            del arrows[node]
    assert not arrows, f"these import each other: {sorted(arrows)}"


def _siblings(path: Path, package: str) -> Iterator[str]:
    """Return the package's own files and sub-packages that a file imports, by their first name."""
    for name in imports(path, members=True):
        if name.startswith(package + "."):
            yield name[len(package) + 1 :].split(".")[0]


def loaded(program: str, *names: str) -> list[str]:
    """Return which of these modules, or any below them, a process has that has run the program."""
    show = f"import sys; {program}; print(*[one for one in {names} if one in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", show], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()


def test_the_server_runs_without_mlx_and_what_is_off() -> None:
    """Also not indirectly: everything that `serve` imports is imported here. A server whose engines are all
    here loads nothing of clusters."""
    off = ("requests", "api.remote_engines", "scheduler.cluster.joined", "ray")
    serves = "import api.serving, scheduler.prompt.tokenizer"
    assert loaded(f"{serves}, transformers", "mlx", "mlx_lm") == loaded(serves, *off) == []


def test_the_command_line_imports_no_command() -> None:
    """`--help` and each key press that completes wait for it: a tenth of a second, and not one."""
    names = ("loadtests", "httpx", "msgspec", "numpy", "pydantic", "rich", "trio")
    assert loaded("from api.cli.command_line import penstock", *names) == []
    assert "bench" in penstock.list_commands(click.Context(penstock))


def test_the_engine_process_runs_without_trio() -> None:
    """Every restart waits for its imports."""
    assert loaded("import scheduler.engine.__main__", "trio", "mlx") == []


def test_what_keeps_a_remote_engine_alive_is_small() -> None:
    """A Ray worker loads it, and has it for as long as there is the node."""
    names = ("trio", "mlx", "ray", "structlog", "numpy", "transformers")
    assert loaded("import scheduler.cluster.ray_engines", *names) == []
