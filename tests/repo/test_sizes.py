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
    "api": 1_657,
    "api/access": 544,
    "api/admin": 995,
    "api/answers": 1_278,
    "api/bodies": 1_384,
    "api/cli": 2_171,
    "api/cli/doctor": 774,
    "api/cli/launch": 733,
    "api/cli/models": 983,
    "api/dialects": 2_063,
    "api/dialects/anthropic": 1_066,
    "api/dialects/openai": 1_747,
    "api/dialects/responses": 3_045,
    "api/http": 2_134,
    "api/options": 1_477,
    "api/smollm2": 291,
    "loadtests": 5_589,
    "loadtests/chaos": 2_042,
    "loadtests/device": 2_425,
    "loadtests/fuzz": 611,
    "loadtests/peers": 153,
    "loadtests/step": 888,
    "scheduler": 1_703,
    "scheduler/answer": 1_788,
    "scheduler/answer/notations": 823,
    "scheduler/answer/tool_calls": 1_912,
    "scheduler/cluster": 365,
    "scheduler/engine": 4_334,
    "scheduler/engine/budget": 1_197,
    "scheduler/engine/disk": 919,
    "scheduler/engine/mlx": 5_082,
    "scheduler/engine/mlx/kv": 1_391,
    "scheduler/engine/mlx/sampling": 1_120,
    "scheduler/engine/mlx/upstream": 887,
    "scheduler/engine/prefix": 1_609,
    "scheduler/engines": 2_561,
    "scheduler/fleet": 894,
    "scheduler/grammar": 2_919,
    "scheduler/intake": 1_329,
    "scheduler/models": 312,
    "scheduler/processes": 676,
    "scheduler/prompt": 3_158,
    "scheduler/requests": 1_434,
    "scheduler/shared": 2_202,
    "scheduler/shared/folder": 1_128,
    "scheduler/telemetry": 1_650,
    "tests": 532,
    "tests/api": 2_102,
    "tests/api/access": 760,
    "tests/api/admin": 1_444,
    "tests/api/answers": 1_096,
    "tests/api/bodies": 2_030,
    "tests/api/cli": 2_811,
    "tests/api/cli/models": 701,
    "tests/api/dialects": 7_158,
    "tests/api/http": 3_657,
    "tests/api/options": 1_017,
    "tests/cancellation": 908,
    "tests/clients": 1_439,
    "tests/clients/programs": 780,
    "tests/cluster": 562,
    "tests/contracts": 963,
    "tests/docs": 486,
    "tests/end_to_end": 6_174,
    "tests/end_to_end/known_bad": 987,
    "tests/failures": 2_218,
    "tests/fakes": 2_032,
    "tests/gateways": 828,
    "tests/grafana": 1_003,
    "tests/loadtests": 4_064,
    "tests/loadtests/chaos": 593,
    "tests/macos": 592,
    "tests/packages": 446,
    "tests/real_model": 1_068,
    "tests/repo": 1_404,
    "tests/scheduler": 1_378,
    "tests/scheduler/answer": 3_375,
    "tests/scheduler/cluster": 580,
    "tests/scheduler/engine": 4_020,
    "tests/scheduler/engine/budget": 1_160,
    "tests/scheduler/engine/disk": 1_225,
    "tests/scheduler/engine/mlx": 7_193,
    "tests/scheduler/engine/mlx/adapters": 881,
    "tests/scheduler/engine/mlx/kv": 1_388,
    "tests/scheduler/engine/mlx/references": 1_090,
    "tests/scheduler/engine/mlx/sampling": 1_854,
    "tests/scheduler/engine/mlx/upstream": 893,
    "tests/scheduler/engine/mlx/zoo": 2_437,
    "tests/scheduler/engine/prefix": 1_938,
    "tests/scheduler/engines": 2_728,
    "tests/scheduler/fleet": 1_204,
    "tests/scheduler/grammar": 2_432,
    "tests/scheduler/intake": 1_760,
    "tests/scheduler/models": 569,
    "tests/scheduler/processes": 1_140,
    "tests/scheduler/prompt": 2_997,
    "tests/scheduler/requests": 1_426,
    "tests/scheduler/service_machine": 1_011,
    "tests/scheduler/shared": 2_016,
    "tests/scheduler/telemetry": 1_533,
    "./*.md": 5_644,
    "api/*.md": 8_876,
    "docs/*.md": 19_137,
    "grafana/*.md": 272,
    "loadtests/*.md": 5_676,
    "scheduler/*.md": 13_291,
    "scheduler/engine/*.md": 3_067,
    "scheduler/engine/mlx/*.md": 3_902,
    "tests/*.md": 1_317,
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
