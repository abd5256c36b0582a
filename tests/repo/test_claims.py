"""Lists, defaults and names in the pages that everybody reads are those of the code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from typing import get_args

import pytest

from api.access.auth import OPEN_PATHS, is_open
from api.options.model_defaults import SETTINGS
from api.options.options import flag, options
from scheduler.engine.mlx.batching import Fallback
from scheduler.fleet.residency import ModelState
from scheduler.shared.waits import REASONS
from scheduler.statistics import EngineCondition
from tests.repo.tree import PACKAGES, ROOT, modules, name_of

LISTS: list[tuple[str, str, str, Iterable[str]]] = [
    ("docs/scheduler-report.md", "`condition` (", ")", EngineCondition),
    ("docs/scheduler-report.md", "| `reason` | |", "`GET /v1/scheduler/requests/ID`", REASONS),
    ("docs/several-models.md", "has `state` (", ")", ModelState),
    ("docs/defaults.md", "Settings are ", "(on, off, auto)", SETTINGS),
    ("scheduler/engine/mlx/README.md", "falls back by a step:", ". The start-up", get_args(Fallback)),
]
"""Page, the words before and after a list of values in backticks, and the values that there are."""


@pytest.mark.parametrize(
    ("page", "before", "after", "values"), LISTS, ids=[before for _, before, _, _ in LISTS]
)
def test_a_list_has_all_values(page: str, before: str, after: str, values: Iterable[str]) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert text.count(before) == 1
    listed = set(re.findall(r"`([a-z_]+)`", text.partition(before)[2].partition(after)[0]))
    assert listed == {str(value) for value in values}


def test_the_version_is_released_and_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    released = re.findall(r"^## \[(\d[\d.]*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == version
    assert released == sorted(released, key=lambda one: [int(part) for part in one.split(".")], reverse=True)
    assert f"| Penstock {version} |" in (ROOT / "docs" / "comparison.md").read_text()
    assert f"penstock-{version}-py3" in (ROOT / "docs" / "installing.md").read_text()


@pytest.mark.parametrize("name", ["host", "tool_parser", "max_slots", "kv_cache_dtype", "max_queue"])
def test_the_readmes_options_have_their_defaults(name: str) -> None:
    (option,) = (option for option in options() if option.field == name)
    assert f"| `{flag(name)}` | {option.default_text} |" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/operating.md"])
def test_the_pages_list_the_paths_that_need_no_key(page: str) -> None:
    section = (ROOT / page).read_text().split("\n## Keys\n")[1].split("\n## ")[0]
    for path in (*OPEN_PATHS, "/docs", "/redoc"):
        assert is_open(path)
        assert f"`{path}`" in section


FOREIGN = {"SequenceGroup", "SchedulerOutput", "ScheduleBatch", "MambaRadixCache"}  # vLLM's and SGLang's
FOREIGN |= {"InnocentVictim", "SubmissionsIgnored"}  # Metal's


@cache
def words_in_code() -> frozenset[str]:
    files = (path for package in PACKAGES for path in modules(package))
    return frozenset(word for file in files for word in re.findall(r"\w+", file.read_text()))


@pytest.mark.parametrize(
    "page", ["DESIGN.md", "CONTRIBUTING.md", *map(name_of, ROOT.glob("[a-z]*/**/README.md"))]
)
def test_classes_that_pages_name_exist(page: str) -> None:
    """Who renames `Class`, `Class.member` or `_function` changes the page as well."""
    named = re.findall(
        r"`([A-Z][a-z]+[A-Z]\w*(?:\.\w+)?|[A-Z][a-z]\w+\.[a-z_]+|_[a-z_]{3,})`", (ROOT / page).read_text()
    )
    assert {part for name in named for part in name.split(".")} - FOREIGN <= words_in_code()
