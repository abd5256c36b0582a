"""How large folders may be, and pages that everybody reads.

`make sizes` writes the present numbers where they are smaller; one is raised by hand, with its reason.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.repo.tree import PACKAGES, ROOT

BUDGET = {
    "api": 1_621,
    "api/access": 542,
    "api/admin": 929,
    "api/answers": 1_302,
    "api/bodies": 1_317,
    "api/cli": 2_121,
    "api/cli/doctor": 513,
    "api/cli/launch": 446,
    "api/cli/models": 872,
    "api/dialects": 2_124,
    "api/dialects/anthropic": 1_030,
    "api/dialects/openai": 1_587,
    "api/dialects/responses": 2_956,
    "api/http": 2_016,
    "api/options": 1_361,
    "api/smollm2": 283,
    "loadtests": 2_813,
    "loadtests/chaos": 1_141,
    "loadtests/device": 1_334,
    "loadtests/fuzz": 519,
    "loadtests/step": 692,
    "scheduler": 1_908,
    "scheduler/answer": 1_608,
    "scheduler/answer/notations": 574,
    "scheduler/answer/tool_calls": 1_736,
    "scheduler/cluster": 365,
    "scheduler/engine": 4_327,
    "scheduler/engine/budget": 1_194,
    "scheduler/engine/disk": 919,
    "scheduler/engine/mlx": 5_040,
    "scheduler/engine/mlx/kv": 1_391,
    "scheduler/engine/mlx/sampling": 1_120,
    "scheduler/engine/mlx/upstream": 884,
    "scheduler/engine/prefix": 1_609,
    "scheduler/engines": 2_561,
    "scheduler/fleet": 894,
    "scheduler/grammar": 2_923,
    "scheduler/intake": 1_359,
    "scheduler/models": 312,
    "scheduler/processes": 676,
    "scheduler/prompt": 2_633,
    "scheduler/requests": 1_375,
    "scheduler/shared": 2_200,
    "scheduler/shared/folder": 947,
    "scheduler/telemetry": 1_514,
    "tests": 575,
    "tests/api": 1_799,
    "tests/api/access": 760,
    "tests/api/admin": 1_456,
    "tests/api/answers": 1_107,
    "tests/api/bodies": 2_052,
    "tests/api/cli": 2_636,
    "tests/api/cli/models": 658,
    "tests/api/dialects": 7_225,
    "tests/api/http": 3_364,
    "tests/api/options": 1_015,
    "tests/cancellation": 908,
    "tests/clients": 1_505,
    "tests/clients/programs": 837,
    "tests/cluster": 564,
    "tests/contracts": 963,
    "tests/docs": 496,
    "tests/end_to_end": 6_381,
    "tests/end_to_end/known_bad": 980,
    "tests/failures": 2_218,
    "tests/fakes": 2_041,
    "tests/gateways": 828,
    "tests/grafana": 1_003,
    "tests/loadtests": 1_622,
    "tests/loadtests/chaos": 178,
    "tests/macos": 589,
    "tests/packages": 446,
    "tests/real_model": 1_068,
    "tests/repo": 1_404,
    "tests/scheduler": 1_479,
    "tests/scheduler/answer": 3_337,
    "tests/scheduler/cluster": 580,
    "tests/scheduler/engine": 4_016,
    "tests/scheduler/engine/budget": 1_160,
    "tests/scheduler/engine/disk": 1_202,
    "tests/scheduler/engine/mlx": 7_130,
    "tests/scheduler/engine/mlx/adapters": 881,
    "tests/scheduler/engine/mlx/kv": 1_386,
    "tests/scheduler/engine/mlx/references": 1_090,
    "tests/scheduler/engine/mlx/sampling": 1_854,
    "tests/scheduler/engine/mlx/upstream": 893,
    "tests/scheduler/engine/mlx/zoo": 2_437,
    "tests/scheduler/engine/prefix": 1_929,
    "tests/scheduler/engines": 2_728,
    "tests/scheduler/fleet": 1_204,
    "tests/scheduler/grammar": 2_445,
    "tests/scheduler/intake": 1_786,
    "tests/scheduler/models": 569,
    "tests/scheduler/processes": 1_140,
    "tests/scheduler/prompt": 2_796,
    "tests/scheduler/requests": 1_422,
    "tests/scheduler/service_machine": 1_010,
    "tests/scheduler/shared": 1_994,
    "tests/scheduler/telemetry": 1_292,
    "./*.md": 5_300,
    "api/*.md": 5_620,
    "docs/*.md": 14_450,
    "grafana/*.md": 219,
    "loadtests/*.md": 2_380,
    "scheduler/*.md": 9_360,
    "scheduler/engine/*.md": 1_950,
    "scheduler/engine/mlx/*.md": 2_740,
    "tests/*.md": 1_003,
}
"""Lines of Python below a folder, and words of its pages, but for folders that have a number of their own."""
HISTORY = "CHANGELOG.md"
PAGE_LINES = {"README.md": 150, "DESIGN.md": 150}
MAX_GLOSSARY_TERMS = 40


def sizes() -> Counter[str]:
    found: Counter[str] = Counter()
    folders = [ROOT / name for name in (*PACKAGES, "grafana", "tests", "docs")]
    for file in (one for folder in folders for one in folder.rglob("*.py")):
        found[key_of(file, "")] += len(file.read_text().splitlines())
    for file in (*ROOT.glob("*.md"), *(one for folder in folders for one in folder.rglob("*.md"))):
        if file.name != HISTORY:
            found[key_of(file, "/*.md")] += len(file.read_text().split())
    return found


def key_of(file: Path, kind: str) -> str:
    names = [f"{folder}{kind}" for folder in file.relative_to(ROOT).parents]
    return next((name for name in names if name in BUDGET), names[0])


def test_no_folder_grows() -> None:
    grown = {name: size for name, size in sizes().items() if size > BUDGET.get(name, 0)}
    assert not grown, f"remove something there first, or raise the number and say why: {grown}"


@pytest.mark.parametrize("page", PAGE_LINES)
def test_pages_keep_their_length(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= PAGE_LINES[page]


def test_the_glossary_is_short_and_translates_each_term() -> None:
    """A term without an equivalent in vLLM or SGLang says so with a dash."""
    glossary = (ROOT / "DESIGN.md").read_text().split("## Glossary")[1]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", glossary, re.M)[1:]
    assert 15 <= len(rows) <= MAX_GLOSSARY_TERMS
    terms = [term for term, _, _ in rows]
    assert len(set(terms)) == len(terms)
    assert all(meaning.strip() and equivalent.strip() for _, meaning, equivalent in rows)


def write_smaller() -> None:
    """Write the present sizes into this file; a folder that is gone loses its line."""
    found, page = sizes(), Path(__file__)
    head, _, rest = page.read_text().partition("BUDGET = {\n")
    _, _, tail = rest.partition("}\n")
    rows = [f'    "{name}": {min(found[name], most):_},\n' for name, most in BUDGET.items() if found[name]]
    page.write_text(f"{head}BUDGET = {{\n{''.join(rows)}}}\n{tail}")


if __name__ == "__main__":
    write_smaller()
