"""Questions of readers who know vLLM, and of new maintainers: to the file in two links.

Users begin at README.md, maintainers at CONTRIBUTING.md. Each file but READMEs says in its first
sentence what it is, which `python -m tests.repo.ideas` lists.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.repo.ideas import MAX_CHARACTERS, idea
from tests.repo.tree import PACKAGES, ROOT, modules, name_of

MAX_LINKS = 2

QUESTIONS = {
    "What is the scheduler's output for one step?": ("scheduler/engine/plan.py", "StepPlan"),
    "What is one iteration of the engine core?": ("scheduler/engine/loop.py", "EngineLoop"),
    "Which sequence is preempted when the KV cache is full?": ("scheduler/engine/memory.py", "victims"),
    "How large is a prefill chunk beside decoding sequences?": ("scheduler/engine/pace.py", "PrefillPace"),
    "How is a prefix matched and locked?": ("scheduler/engine/prefix/radix_tree.py", "RadixTree"),
    "Which cached prefix is evicted first?": ("scheduler/engine/prefix/prefix_cache.py", "PrefixCache"),
    "How do prefixes get to disk?": ("scheduler/engine/disk/disk_tier.py", "DiskTier"),
    "Where is a batch's decode step?": ("scheduler/engine/mlx/batch.py", "Batch"),
    "Where are temperature, top-p and seeds applied?": ("scheduler/engine/mlx/sampling/draw.py", "gumbel"),
    "What is the counterpart of cascade attention?": (
        "scheduler/engine/mlx/shared_attention.py",
        "shared_attention",
    ),
    "Where are token bitmasks for structured output filled?": (
        "scheduler/engine/constraint.py",
        "Constraint",
    ),
    "How does a JSON schema become a grammar?": ("scheduler/grammar/answer_grammar.py", "AnswerGrammars"),
    "Which waiting request is next?": ("scheduler/intake/fair_queue.py", "FairQueue"),
    "When does a client get 503 or 429?": ("scheduler/intake/admission.py", "Admission"),
    "Which states has a request?": ("scheduler/requests/lifecycle.py", "State"),
    "Where is the output processor?": ("scheduler/engines/multiplexer.py", "Multiplexer"),
    "Where is the incremental detokenizer?": ("scheduler/answer/detokenizer.py", "Detokenizer"),
    "Where are tool calls parsed?": ("scheduler/answer/tool_calls/reading.py", "CallReader"),
    "Which tool and reasoning parser does a model get?": (
        "scheduler/answer/answer_format.py",
        "answer_format",
    ),
    "What happens when the engine dies?": ("scheduler/engines/supervisor.py", "Supervisor"),
    "When is an engine hung?": ("scheduler/engines/stall_watch.py", "StallWatch"),
    "What crosses between the processes?": ("scheduler/shared/messages.py", "Submit"),
    "Which Prometheus metrics are there?": ("scheduler/telemetry/metrics.py", "Metrics"),
    "Which options does `serve` take?": ("api/options/settings.py", "ServeSettings"),
    "Which fields has a chat completion's body?": ("api/dialects/openai/schema.py", "ChatCompletionRequest"),
    "Which status has which error?": ("api/answers/errors.py", "from_scheduler"),
}

QUESTIONS |= {
    "Where is a stop string matched?": ("scheduler/answer/stop_strings.py", "StopStrings"),
    "Who decides that a Mac is full, and what goes first?": ("scheduler/engine/budget/policy.py", "Relief"),
    "Where is a reasoning parser added?": ("scheduler/answer/answer_format.py", "ReasoningSyntax"),
    "Where is a syntax of tool calls added?": ("scheduler/answer/notations/description.py", "Notation"),
    "What must a new API's encoder have?": ("api/answers/event_stream.py", "Encoder"),
    "How does a picture become text?": ("api/bodies/media.py", "note"),
    "Which temperature has a body without one?": ("api/options/model_defaults.py", "Defaults"),
    "Where are stored responses?": ("api/dialects/responses/store.py", "ResponseStore"),
    "How are keys checked?": ("api/access/auth.py", "Authentication"),
    "Which tenant and session has a request?": ("api/access/identity.py", "Identity"),
    "Who notices that a client is gone?": ("api/http/exchange.py", "Exchange"),
    "How many bytes may unfinished bodies hold?": ("api/http/body_budget.py", "BodyBudget"),
    "What happens on SIGTERM?": ("api/serving.py", "serve"),
    "What does the live page get?": ("api/admin/live.py", "LiveFeed"),
    "What does `penstock doctor` find?": ("api/cli/doctor/findings.py", "findings"),
    "How does `penstock pull` resume?": ("api/cli/models/pull.py", "fetch"),
    "What is in the systemd unit?": ("api/cli/service.py", "units"),
    "How is a chat template rendered?": ("scheduler/prompt/chat_template.py", "renderer"),
    "Which engine gets a request?": ("scheduler/engines/placement.py", "least_seconds"),
    "Which request is blamed for a crash?": ("scheduler/engines/poison.py", "culprit_of"),
    "Which model is unloaded for another one?": ("scheduler/fleet/residency.py", "decide"),
    "How does another machine's engine join?": ("scheduler/engine/joining.py", "join"),
    "How is a machine's token checked?": ("scheduler/shared/hello.py", "check_hello"),
    "What differs between Metal, CUDA and a CPU?": ("scheduler/engine/mlx/device.py", "MlxDevice"),
    "What is changed of mlx-lm?": ("scheduler/engine/mlx/upstream/apply.py", "apply"),
    "How is a new model found wrong in a batch?": ("scheduler/engine/mlx/load_check.py", "check"),
    "What happens after a watchdog of the device?": ("scheduler/engine/chunk_ceiling.py", "ChunkCeiling"),
    "What is the log line of a request?": ("scheduler/telemetry/request_recorder.py", "RequestRecorder"),
    "What stands in for an engine in tests?": ("tests/fakes/loopback_engine.py", "LoopbackLauncher"),
    "Where are drafts verified?": ("scheduler/engine/mlx/batch.py", "verify"),
    "Which class of error may a refusal have?": ("scheduler/errors.py", "SchedulerError"),
    "Which metric counts a refusal?": ("scheduler/telemetry/observation.py", "rejection_reason"),
}
"""The second thirty are a new maintainer's."""


def targets(page: Path) -> Iterator[Path]:
    """Pages and Python files that a page links to or names in backticks, if they exist."""
    text = page.read_text()
    for name in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", text) + re.findall(r"`([\w./]+\.py)`", text):
        target = (page.parent / name).resolve()
        if target.is_dir():
            target /= "README.md"
        if target.is_file():
            yield target


@cache
def links_from_start() -> dict[Path, int]:
    """How many links each page or file is from README.md or CONTRIBUTING.md, up to MAX_LINKS."""
    distances = {ROOT / "README.md": 0, ROOT / "CONTRIBUTING.md": 0}
    for distance in range(1, MAX_LINKS + 1):
        pages = [page for page in distances if page.suffix == ".md"]
        for target in [target for page in pages for target in targets(page)]:
            distances.setdefault(target, distance)
    return distances


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_reader_finds_the_file_in_two_links(question: str) -> None:
    name, symbol = QUESTIONS[question]
    path = ROOT / name
    assert path.is_file()
    assert path in links_from_start(), f"no page that README.md or CONTRIBUTING.md leads to names {name}"
    defined = {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert symbol in defined


def product_files() -> list[Path]:
    files = [path for package in PACKAGES for path in modules(package)]
    return [path for path in files if not path.name.startswith("__")]


def test_each_file_opens_with_an_idea_of_its_own() -> None:
    """A file is one idea: a sentence that is short, and that no other file has."""
    ideas = {name_of(path): idea(path) for path in product_files()}
    assert len(ideas) > 400
    without = [name for name, found in ideas.items() if not 15 <= len(found) <= MAX_CHARACTERS]
    assert not without, f"begin the docstring with one sentence of {MAX_CHARACTERS} characters: {without}"
    shared = [found for found, files in Counter(ideas.values()).items() if files > 1]
    assert not shared, f"several files begin with {shared}"


def test_each_folder_is_in_a_map() -> None:
    """By its name or one of its files, in a page that one of them links to."""
    named = {target.parent for target in links_from_start()} | set().union(
        *(folders(page) for page in links_from_start() if page.suffix == ".md")
    )
    missing = sorted({name_of(path.parent) for path in product_files() if path.parent not in named})
    assert not missing, f"no page that README.md or CONTRIBUTING.md leads to names these: {missing}"


def folders(page: Path) -> set[Path]:
    """Return what a page names in backticks with a slash behind it."""
    return {(page.parent / name).resolve() for name in re.findall(r"`([\w./]+)/`", page.read_text())}


@pytest.mark.parametrize("readme", sorted(ROOT.glob("[a-z]*/**/README.md")), ids=name_of)
def test_readmes_name_files_that_exist(readme: Path) -> None:
    """A page that has drifted is worse than none. A file's name is from its folder or the root."""
    named = re.findall(r"`([\w./]+\.py)`", readme.read_text())
    assert named, "a README without a file"
    places = (readme.parent, ROOT)
    missing = [name for name in named if not any((place / name).is_file() for place in places)]
    assert not missing, f"{name_of(readme)} names {missing}"


@pytest.mark.parametrize(
    "page",
    [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("[a-z]*/**/*.md"))],
    ids=name_of,
)
def test_links_lead_somewhere(page: Path) -> None:
    """Files exist, and the headings that anchors name."""
    for name, anchor in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", page.read_text()):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{name_of(page)} links to {name}"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)} links to {name}#{anchor}"


def anchors(page: Path) -> set[str]:
    """GitHub's: lower case, without punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_folder_readme_is_near() -> None:
    for readme in ROOT.glob("[a-z]*/**/README.md"):
        assert readme in links_from_start(), f"no page leads to {name_of(readme)} in {MAX_LINKS} links"
