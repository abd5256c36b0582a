"""Numbers in the pages that everybody reads are those of the constants that they quote."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from api.access.auth import OPEN_PATHS, is_open
from api.answers.blocks import BLOCK, FEEDERS
from api.answers.whole_answer import MAX_HELD_BYTES
from api.bodies.json_pieces import SLICE_BYTES
from api.bodies.unknown_fields import MAX_NAMES
from api.dialects.embeddings.schema import MAX_INPUTS
from api.dialects.json_route import INLINE_BYTES, INLINE_OBJECTS, INLINE_VALUES
from api.options.model_defaults import SETTINGS
from api.options.options import flag, options
from scheduler import engine_bounds
from scheduler.cluster.joined import AWAY_SECONDS
from scheduler.config import FairnessConfig, RecoveryConfig, SupervisionConfig
from scheduler.engine import pace
from scheduler.engine.budget import limits
from scheduler.engine.disk.block_chain import BLOCK_TOKENS
from scheduler.engine.memory import GROWTH_TOKENS, MOST_PREEMPTIONS
from scheduler.engine.mlx.batching import Fallback
from scheduler.engine.plan import LEAST_GAP_TOKENS, SCAFFOLD_TOKENS, StepReason
from scheduler.engine.prefill import LEAST_CHUNK_TOKENS, MOST_PASSES
from scheduler.engines import deadlines, poison
from scheduler.engines.adapters import MAX_ADAPTERS
from scheduler.fleet.residency import ModelState
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.processes.listener import MOST_UNIDENTIFIED
from scheduler.prompt.preparation import MAX_PROMPT_LOGPROBS
from scheduler.requests import answer_reading, record, time_line
from scheduler.shared.hello import TOKEN_BYTES
from scheduler.shared.keep_alive import SILENCE_SECONDS
from scheduler.shared.waits import REASONS
from scheduler.statistics import EngineCondition
from scheduler.telemetry.history import KEPT_SAMPLES
from scheduler.telemetry.request_recorder import KEPT
from tests.repo.tree import PACKAGES, ROOT, modules, name_of

MIB = 1 << 20
FAIRNESS, RECOVERY, SUPERVISION = FairnessConfig(), RecoveryConfig(), SupervisionConfig()

CLAIMS = [
    ("docs/capacity.md", "{} of what Metal recommends", limits._OF_DEVICE),
    ("docs/capacity.md", "buffers** are {} % of the limit", round(limits._POOL * 100)),
    ("docs/capacity.md", "the peak** is {} % of what", round(limits._FIRST_PEAK * 100)),
    ("docs/capacity.md", "- {} GB for the process", round(limits.PROCESS_BYTES / 1e9, 2)),
    ("docs/tuning.md", "(default: {} times the usual gap)", pace.AUTOMATIC_RATIO),
    ("docs/operating.md", "keeps {} minutes", KEPT_SAMPLES // 60),
    ("docs/fair-shares.md", "has waited for {} seconds", FAIRNESS.patience_seconds),
    ("docs/troubleshooting.md", "died {} times in", RECOVERY.max_engine_deaths),
    ("docs/troubleshooting.md", "times in {} seconds", RECOVERY.death_window_seconds),
    ("docs/troubleshooting.md", "until it has lived for {};", SUPERVISION.stable_seconds),
    ("docs/troubleshooting.md", "a suspect at {} deaths in a row", RECOVERY.max_request_deaths),
    ("docs/adapters.md", "There may be {} adapters", MAX_ADAPTERS),
    ("docs/scheduler-report.md", "among the last {} that ended", KEPT),
    ("docs/logprobs.md", "more than {} MiB", MAX_HELD_BYTES // MIB),
    ("docs/logprobs.md", "at most {} values", MAX_PROMPT_LOGPROBS),
    ("docs/logprobs.md", "slices of {} KB", SLICE_BYTES >> 10),
    ("docs/embeddings.md", "up to {} texts or lists of ids", str(MAX_INPUTS)),
    ("docs/embeddings.md", "{} texts at a time", BLOCK * FEEDERS),
    ("api/FIELDS.md", "(up to {}, by their paths", MAX_NAMES),
    ("SECURITY.md", "the token is {} random bytes", TOKEN_BYTES),
    ("DESIGN.md", "({} KiB,", INLINE_BYTES >> 10),
    ("DESIGN.md", "{} objects,", INLINE_OBJECTS),
    ("DESIGN.md", "{} values)", INLINE_VALUES),
    ("DESIGN.md", "a bound of {} s", FAIRNESS.patience_seconds),
    ("DESIGN.md", "blocks of {} tokens", BLOCK_TOKENS),
    ("DESIGN.md", "has got tokens in {} steps of this engine", record._TRUSTED_STEPS),
    ("scheduler/intake/README.md", "halved every {} seconds", FAIRNESS.half_life_seconds),
    ("scheduler/intake/README.md", "has waited for {} seconds", FAIRNESS.patience_seconds),
    ("scheduler/intake/README.md", "a window of {} arrivals", FAIRNESS.window),
    ("scheduler/intake/README.md", "by more than {} later ones", FAIRNESS.window - 1),
    ("scheduler/intake/README.md", "{} x output tokens", FAIRNESS.output_weight),
    ("scheduler/requests/README.md", "At most {} spans a request", time_line.MOST_SPANS),
    ("scheduler/requests/README.md", "The last {} requests that ended", KEPT),
    ("scheduler/requests/README.md", "is {} ms of its CPU time", answer_reading.STEP_SECONDS * 1000),
    ("scheduler/engine/README.md", "may take {} times a step without", pace.AUTOMATIC_RATIO),
    ("scheduler/engine/README.md", "at least {} prompt tokens whatever", LEAST_CHUNK_TOKENS),
    ("scheduler/engine/README.md", "and {} until speeds are known", pace._FIRST_TOKENS),
    ("scheduler/engine/README.md", "each passed by at most {}", MOST_PASSES),
    ("scheduler/engine/README.md", "up to {} tokens of its answer to come", GROWTH_TOKENS),
    ("scheduler/engine/README.md", "is preempted, at most {} times", MOST_PREEMPTIONS),
    ("scheduler/engine/prefix/README.md", "(at least {} tokens apart)", LEAST_GAP_TOKENS),
    ("scheduler/engine/prefix/README.md", "Below {} common tokens", SCAFFOLD_TOKENS),
    ("scheduler/engine/prefix/README.md", "Blocks of {} tokens on a chain", BLOCK_TOKENS),
    ("scheduler/engines/README.md", "(tokens in {} of its steps)", record._TRUSTED_STEPS),
    ("scheduler/engines/README.md", "with {} of the KV budget, not below", engine_bounds._SHARE_STEP),
    ("scheduler/engines/README.md", "not below {}.", engine_bounds._LEAST_SHARE),
    ("scheduler/engines/README.md", "down to {}.", engine_bounds.LEAST_CEILING_TOKENS),
    ("scheduler/engines/README.md", "after {} chunks of its full size", 2 * engine_bounds._CLIMB_CHUNKS),
    ("scheduler/engines/README.md", "up to {}: between two tries", engine_bounds._MOST_CLIMB_CHUNKS),
    ("scheduler/engines/README.md", "{} times the slowest recent step", deadlines.MULTIPLE),
    ("scheduler/engines/README.md", "at least {} s, at most `--stall-seconds`", deadlines.FLOOR_SECONDS),
    ("scheduler/engines/README.md", "the slowest load, at least {} s.", deadlines._LOAD_FLOOR_SECONDS),
    ("scheduler/engines/README.md", "up to {} times for one request", poison._MOST_SPARED_DEATHS),
    ("scheduler/engines/README.md", "up to {} times in a row for one", poison._MOST_KILLS),
    ("scheduler/engines/README.md", "after {} s |", SILENCE_SECONDS),
    ("scheduler/cluster/README.md", "has not dialed again for {} s", AWAY_SECONDS),
    ("scheduler/processes/README.md", "token of {} random bytes", TOKEN_BYTES),
    ("scheduler/processes/README.md", "{} of them are open at most", MOST_UNIDENTIFIED),
]
"""Page, sentence with a place for the number, and the constant."""

WORDS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 12: "twelve", 16: "sixteen", 20: "twenty"}


STEP_REASONS = [reason for part in get_args(StepReason) for reason in get_args(part)]

LISTS: list[tuple[str, str, str, Iterable[str]]] = [
    ("docs/scheduler-report.md", "`condition` (", ")", EngineCondition),
    (
        "docs/scheduler-report.md",
        "| `plan.reason` |",
        "|",
        STEP_REASONS,
    ),
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


def spellings(value: object) -> set[str]:
    """Return how a page may write the number: in digits, with a comma, or as a word."""
    if isinstance(value, str):
        return {value}
    assert isinstance(value, int | float)
    number = int(value) if float(value).is_integer() else value
    found = {str(number), f"{number:,}"}
    return found | {WORDS[number]} if isinstance(number, int) and number in WORDS else found


@pytest.mark.parametrize(("page", "sentence", "value"), CLAIMS, ids=[f"{page}: {s}" for page, s, _ in CLAIMS])
def test_a_number_is_the_constants(page: str, sentence: str, value: object) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert any(sentence.replace("{}", one) in text for one in spellings(value)), (
        f"{page}: {sentence!r} is {value}"
    )


def test_the_version_is_released_and_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    released = re.findall(r"^## \[(\d[\d.]*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == version
    assert released == sorted(released, key=lambda one: [int(part) for part in one.split(".")], reverse=True)
    assert f"| Penstock {version} |" in (ROOT / "docs" / "comparison.md").read_text()
    assert f"penstock-{version}-py3" in (ROOT / "docs" / "installing.md").read_text()


@pytest.mark.parametrize(
    ("peer", "requirements", "package"),
    [
        ("mlx_lm.server", "mlx_lm.txt", "mlx-lm"),
        ("Rapid-MLX", "rapid_mlx.txt", "rapid-mlx"),
    ],
)
def test_other_servers_are_compared_at_the_release_that_is_measured(
    peer: str, requirements: str, package: str
) -> None:
    pinned = (ROOT / "loadtests" / "peers" / requirements).read_text()
    (release,) = re.findall(rf"^{package}==(\S+)", pinned, re.M)
    assert f"| {peer} {release} |" in (ROOT / "loadtests/peers/README.md").read_text()
    assert set(re.findall(rf"\| {peer} (\S+) \|", (ROOT / "docs/comparison.md").read_text())) <= {release}


@pytest.mark.parametrize("name", ["host", "tool_parser", "max_slots", "kv_cache_dtype", "max_queue"])
def test_the_readmes_options_have_their_defaults(name: str) -> None:
    (option,) = (option for option in options() if option.field == name)
    assert f"| `{flag(name)}` | {option.default_text} |" in (ROOT / "README.md").read_text()


def test_the_comparison_is_a_full_table() -> None:
    """A cell that is forgotten shifts a row's claims to other servers."""
    _, table = (ROOT / "docs" / "comparison.md").read_text().split("| | Penstock ", 1)
    rows = table.split("\n\n")[0].splitlines()
    assert len(rows) > 10
    assert {row.count("|") for row in rows[1:]} == {10}


def test_the_embedded_models_shares_are_its_evaluations() -> None:
    metrics = json.loads((EMBEDDED_FOLDER / "evaluation.json").read_text())["metrics"]
    page = " ".join((ROOT / "scheduler" / "models" / "README.md").read_text().split())
    for words, metric in {
        "prompts of up to 1,500 tokens {} %": "recall",
        "tool calls {} %": "tool call",
        "answers with thinking on {} %": "thinking on",
        "repeating {} %": "repeat",
        "sorting {} %": "sort",
    }.items():
        assert words.format(round(100 * metrics[metric]["right"])) in page


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/operating.md"])
def test_the_pages_list_the_paths_that_need_no_key(page: str) -> None:
    section = (ROOT / page).read_text().split("\n## Keys\n")[1].split("\n## ")[0]
    for path in (*OPEN_PATHS, "/docs", "/redoc"):
        assert is_open(path)
        assert f"`{path}`" in section


FOREIGN = {"SequenceGroup", "SchedulerOutput", "ScheduleBatch", "MambaRadixCache"}  # vLLM's and SGLang's
FOREIGN |= {"InnocentVictim", "SubmissionsIgnored"}  # Metal's


@cache
def names_in(files: tuple[Path, ...]) -> frozenset[str]:
    """Return all names in the files' code, and `Class.member` for what their classes define."""
    return frozenset(name for file in files for name in _names(ast.parse(file.read_text())))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name, body=body):
                yield name
                for member in body:
                    match member:
                        case (
                            ast.FunctionDef(defined)
                            | ast.AsyncFunctionDef(defined)
                            | ast.AnnAssign(target=ast.Name(defined))
                            | ast.Assign(targets=[ast.Name(defined)])
                        ):
                            yield f"{name}.{defined}"
                        case _:
                            pass
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.Name(name) | ast.arg(name):
                yield name
            case ast.Attribute(attr=name) | ast.alias(name):
                yield name
            case _:
                pass


@pytest.mark.parametrize(
    "page", ["DESIGN.md", "CONTRIBUTING.md", *map(name_of, ROOT.glob("[a-z]*/**/README.md"))]
)
def test_classes_that_pages_name_exist(page: str) -> None:
    """Who renames `Class`, `Class.member` or `_function` changes the page as well."""
    named = re.findall(
        r"`([A-Z][a-z]+[A-Z]\w*(?:\.\w+)?|[A-Z][a-z]\w+\.[a-z_]+|_[a-z_]{3,})`", (ROOT / page).read_text()
    )
    files = tuple(path for package in PACKAGES for path in modules(package))
    assert set(named) - FOREIGN <= names_in(files)


def test_the_guide_to_dialects_names_what_they_use() -> None:
    guide = (ROOT / "api" / "README.md").read_text().split("\n## Adding a dialect\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`(?:\w+\.)*([A-Z]\w+)[`(]", guide))
    rooms = [path for room in ("dialects", "answers", "bodies") for path in modules(f"api/{room}")]
    files = (*rooms, ROOT / "api" / "app.py", ROOT / "tests" / "api" / "field_table.py")
    assert len(named) > 8
    assert named <= names_in(files)
