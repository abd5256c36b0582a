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
    "api": 1_370,
    "api/access": 535,  # tenants: farms with several owners
    "api/admin": 687,
    "api/answers": 1_090,  # log-probabilities: evaluators
    "api/bodies": 1_178,  # anyone behind an open port: bounds
    "api/cli": 1_626,  # operators: services, batch, chat
    "api/cli/doctor": 339,
    "api/cli/launch": 317,
    "api/cli/models": 444,
    "api/dialects": 1_961,  # rerank, decisions: RAG and routers
    "api/dialects/anthropic": 922,
    "api/dialects/openai": 1_392,  # AI SDK, LiteLLM, openai-agents
    "api/dialects/responses": 2_096,  # Codex, openai-agents: background, resumed
    "api/http": 1_749,
    "api/options": 1_083,  # operators of several models
    "api/smollm2": 238,
    "loadtests": 2_810,
    "loadtests/chaos": 1_141,
    "loadtests/device": 1_336,
    "loadtests/fuzz": 519,
    "loadtests/step": 690,
    "scheduler": 1_751,
    "scheduler/answer": 1_567,
    "scheduler/answer/notations": 574,
    "scheduler/answer/tool_calls": 1_706,  # agents on all 40 families of calls
    "scheduler/cluster": 364,
    "scheduler/engine": 4_064,  # farms: plans, holds, several machines
    "scheduler/engine/budget": 1_088,  # Macs whose memory others use, too
    "scheduler/engine/disk": 912,  # farms that restart: warm prefixes
    "scheduler/engine/mlx": 5_013,  # LoRA farms, embeddings, packed KV
    "scheduler/engine/mlx/kv": 1_378,
    "scheduler/engine/mlx/sampling": 1_045,  # mixed parameters on host and device
    "scheduler/engine/mlx/upstream": 758,  # real folders: rotary, saved tensors
    "scheduler/engine/prefix": 1_442,
    "scheduler/engines": 2_556,  # farms: deaths, poison, several engines
    "scheduler/fleet": 836,  # several models: share by weight
    "scheduler/grammar": 2_669,  # strict tools, Codex' Lark grammars
    "scheduler/intake": 1_095,  # tenants and sessions: fair shares
    "scheduler/models": 275,
    "scheduler/processes": 593,
    "scheduler/prompt": 2_574,  # real templates: histories in order
    "scheduler/requests": 1_140,
    "scheduler/shared": 2_073,  # engines elsewhere: the wire
    "scheduler/shared/folder": 936,  # real folders: rotary and fields
    "scheduler/telemetry": 1_432,  # operators: live page, vLLM's names
    "tests": 570,
    "tests/api": 1_463,
    "tests/api/access": 576,
    "tests/api/admin": 747,
    "tests/api/answers": 860,
    "tests/api/bodies": 1_055,
    "tests/api/cli": 1_803,
    "tests/api/cli/models": 397,
    "tests/api/dialects": 4_474,
    "tests/api/http": 2_164,
    "tests/api/options": 689,
    "tests/cancellation": 455,
    "tests/clients": 886,
    "tests/clients/programs": 599,
    "tests/cluster": 483,
    "tests/contracts": 907,
    "tests/docs": 337,
    "tests/end_to_end": 3_876,
    "tests/end_to_end/known_bad": 855,
    "tests/failures": 1_273,
    "tests/fakes": 1_988,
    "tests/gateways": 723,
    "tests/grafana": 411,
    "tests/loadtests": 1_265,
    "tests/loadtests/chaos": 107,
    "tests/macos": 343,
    "tests/packages": 352,
    "tests/real_model": 854,
    "tests/repo": 779,
    "tests/scheduler": 643,
    "tests/scheduler/answer": 2_072,
    "tests/scheduler/cluster": 500,
    "tests/scheduler/engine": 2_869,
    "tests/scheduler/engine/budget": 878,
    "tests/scheduler/engine/disk": 1_058,
    "tests/scheduler/engine/mlx": 3_698,
    "tests/scheduler/engine/mlx/adapters": 470,
    "tests/scheduler/engine/mlx/kv": 730,
    "tests/scheduler/engine/mlx/references": 737,
    "tests/scheduler/engine/mlx/sampling": 761,
    "tests/scheduler/engine/mlx/upstream": 380,
    "tests/scheduler/engine/mlx/zoo": 1_819,
    "tests/scheduler/engine/prefix": 1_195,
    "tests/scheduler/engines": 1_615,
    "tests/scheduler/fleet": 691,
    "tests/scheduler/grammar": 1_784,
    "tests/scheduler/intake": 866,
    "tests/scheduler/models": 254,
    "tests/scheduler/processes": 692,
    "tests/scheduler/prompt": 1_953,
    "tests/scheduler/requests": 679,
    "tests/scheduler/service_machine": 1_031,
    "tests/scheduler/shared": 1_307,
    "tests/scheduler/telemetry": 710,
    "./*.md": 5_366,
    "api/*.md": 5_451,
    "docs/*.md": 14_136,
    "grafana/*.md": 219,
    "loadtests/*.md": 2_278,
    "scheduler/*.md": 9_275,
    "scheduler/engine/*.md": 1_943,
    "scheduler/engine/mlx/*.md": 2_893,
    "tests/*.md": 999,
}
"""Lines of Python below a folder, and words of its pages, but for folders that have a number of their own.
Where it is more than the review of November 2026 had planned: the user who needs the rest."""
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

    def smaller(row: re.Match[str]) -> str:
        number = min(found[row[1]], BUDGET[row[1]])
        return f'    "{row[1]}": {number:_},{row[2]}\n' if number else ""

    page.write_text(re.sub(r'    "(.+)": [\d_]+,(.*)\n', smaller, page.read_text()))


if __name__ == "__main__":
    write_smaller()
