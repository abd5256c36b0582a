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
    "api": 1_471,
    "api/access": 535,
    "api/admin": 722,
    "api/answers": 1_124,
    "api/bodies": 1_206,
    "api/cli": 1_755,
    "api/cli/doctor": 465,
    "api/cli/launch": 357,
    "api/cli/models": 754,
    "api/dialects": 2_038,
    "api/dialects/anthropic": 931,
    "api/dialects/openai": 1_451,
    "api/dialects/responses": 2_913,
    "api/http": 1_937,
    "api/options": 1_114,
    "api/smollm2": 283,
    "loadtests": 2_811,
    "loadtests/chaos": 1_141,
    "loadtests/device": 1_334,
    "loadtests/fuzz": 519,
    "loadtests/step": 691,
    "scheduler": 1_751,
    "scheduler/answer": 1_610,
    "scheduler/answer/notations": 574,
    "scheduler/answer/tool_calls": 1_742,
    "scheduler/cluster": 364,
    "scheduler/engine": 4_222,
    "scheduler/engine/budget": 1_193,
    "scheduler/engine/disk": 920,
    "scheduler/engine/mlx": 5_247,
    "scheduler/engine/mlx/kv": 1_395,
    "scheduler/engine/mlx/sampling": 1_120,
    "scheduler/engine/mlx/upstream": 1_151,
    "scheduler/engine/prefix": 1_532,
    "scheduler/engines": 2_557,
    "scheduler/fleet": 883,
    "scheduler/grammar": 2_898,
    "scheduler/intake": 1_097,
    "scheduler/models": 312,
    "scheduler/processes": 667,
    "scheduler/prompt": 2_622,
    "scheduler/requests": 1_144,
    "scheduler/shared": 2_101,
    "scheduler/shared/folder": 947,
    "scheduler/telemetry": 1_508,
    "tests": 570,
    "tests/api": 1_721,
    "tests/api/access": 728,
    "tests/api/admin": 966,
    "tests/api/answers": 945,
    "tests/api/bodies": 1_628,
    "tests/api/cli": 2_215,
    "tests/api/cli/models": 557,
    "tests/api/dialects": 6_378,
    "tests/api/http": 2_953,
    "tests/api/options": 838,
    "tests/cancellation": 600,
    "tests/clients": 888,
    "tests/clients/programs": 599,
    "tests/cluster": 507,
    "tests/contracts": 935,
    "tests/docs": 369,
    "tests/end_to_end": 3_876,
    "tests/end_to_end/known_bad": 855,
    "tests/failures": 1_902,
    "tests/fakes": 2_039,
    "tests/gateways": 723,
    "tests/grafana": 421,
    "tests/loadtests": 1_511,
    "tests/loadtests/chaos": 132,
    "tests/macos": 436,
    "tests/packages": 435,
    "tests/real_model": 854,
    "tests/repo": 1_158,
    "tests/scheduler": 835,
    "tests/scheduler/answer": 2_775,
    "tests/scheduler/cluster": 519,
    "tests/scheduler/engine": 3_430,
    "tests/scheduler/engine/budget": 1_057,
    "tests/scheduler/engine/disk": 1_135,
    "tests/scheduler/engine/mlx": 4_845,
    "tests/scheduler/engine/mlx/adapters": 580,
    "tests/scheduler/engine/mlx/kv": 865,
    "tests/scheduler/engine/mlx/references": 950,
    "tests/scheduler/engine/mlx/sampling": 861,
    "tests/scheduler/engine/mlx/upstream": 730,
    "tests/scheduler/engine/mlx/zoo": 1_871,
    "tests/scheduler/engine/prefix": 1_455,
    "tests/scheduler/engines": 1_894,
    "tests/scheduler/fleet": 797,
    "tests/scheduler/grammar": 2_169,
    "tests/scheduler/intake": 1_171,
    "tests/scheduler/models": 490,
    "tests/scheduler/processes": 1_034,
    "tests/scheduler/prompt": 2_159,
    "tests/scheduler/requests": 989,
    "tests/scheduler/service_machine": 1_039,
    "tests/scheduler/shared": 1_561,
    "tests/scheduler/telemetry": 960,
    "./*.md": 5_404,
    "api/*.md": 5_473,
    "docs/*.md": 14_151,
    "grafana/*.md": 219,
    "loadtests/*.md": 2_278,
    "scheduler/*.md": 9_386,
    "scheduler/engine/*.md": 1_949,
    "scheduler/engine/mlx/*.md": 3_066,
    "tests/*.md": 1_001,
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
