"""The commands in the READMEs are valid."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest

from api.cli.command_line import penstock
from api.cli.serve_command import serve, serve_settings
from loadtests.bench import bench, dev

ROOT = Path(__file__).parents[2]


def commands() -> list[tuple[str, str]]:
    """Return file and command of every line in a code block that begins with one of ours."""
    found = []
    for readme in [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("[a-z]*/**/*.md"))]:
        for block in re.findall(r"^```(?:sh)?\n(.*?)^```", readme.read_text(), re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                command = line.split("  #")[0].strip().removeprefix("$ ")
                if re.match(r"(make|penstock|\.venv/bin/penstock|(\.venv/bin/)?python -m) ", command):
                    found.append((str(readme.relative_to(ROOT)), command))
    assert len(found) > 15, "the tests of commands would check nothing"
    return found


@pytest.mark.parametrize(("readme", "command"), commands())
def test_commands_are_known_with_their_options(
    readme: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is run: a target of the Makefile, a module, or options that our own parsers accept."""
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    match words:
        case ["make", target, *variables]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
            for variable in variables:
                name, _, value = variable.partition("=")
                assert re.search(rf"^{name} \?=", (ROOT / "Makefile").read_text(), re.M)
                if name == "ARGS":
                    serve_settings(shlex.split(value))
        case ["python" | ".venv/bin/python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None
        case [_, "serve", *words]:
            serve_settings(words)
        case [_, "bench", "dev", name, *words] | [_, "bench", name, *words]:
            group = dev if "dev" in command.split() else bench
            subcommand = group.get_command(click.Context(group), name)
            assert subcommand is not None
            make_files(words)
            subcommand.make_context(name, words)
        case ["penstock", option] if option.startswith("--"):
            assert any(option in parameter.opts for parameter in penstock.params)
        case ["penstock" | ".venv/bin/penstock", name, *words]:
            operators = penstock.get_command(click.Context(penstock), name)
            assert operators is not None
            make_files(words)
            with operators.make_context(name, words):
                pass
        case _:
            pytest.fail(f"{readme}: nobody knows {command!r}")


def make_files(words: list[str]) -> None:
    """Commands want the files that they read to be there."""
    for file in (Path(word) for word in words if word.endswith((".json", ".jsonl"))):
        file.parent.mkdir(exist_ok=True)
        file.touch()


def test_suggested_models_fit_the_memory_they_are_suggested_for() -> None:
    """Weights take less than two thirds of it: prompts and the system need the rest."""
    page = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (\d+) GB.*? \| `([\w-]+/[\w.-]+)` \| ([\d.]+) GB \|", page, re.M)
    assert len(rows) >= 4
    for memory, _, weights in rows:
        assert float(weights) < float(memory) * 2 / 3


@pytest.mark.parametrize(
    "term",
    [
        "continuous batching",
        "chunked prefill",
        "KV cache",
        "prefix caching",
        "preemption",
        "structured output",
        "tool calling",
        "Prometheus",
    ],
)
def test_the_first_screen_uses_the_fields_words(term: str) -> None:
    """A reader who searches for them finds the feature before the first command."""
    first_screen = (ROOT / "README.md").read_text().split("## Start")[0]
    assert term.lower() in first_screen.lower()


def test_the_first_screen_says_why_and_what_to_type_and_what_was_never_run() -> None:
    """Its figures are rows of `docs/figures.md`. Once somebody has run it on a Mac, that sentence goes."""
    page = (ROOT / "README.md").read_text()
    screen = page.split("## Start")[0]
    assert re.findall(r"\*\*(.+?)\*\*", screen)[-1] == "never on a Mac"
    assert len(screen.split()) <= 240
    assert all(words in screen for words in ("git clone", "make serve", ".venv/bin/penstock launch"))
    assert all(figure in screen for figure in ("1.33", "1.19", "A seventh", "200 requests under 27 deaths"))
    for row in (
        r"32 clients .*\| 1\.33 .*\n.*\| 1\.19 ",
        r"32 agents .* 0\.14 of mlx_lm",
        "200 requests under 27 deaths",
    ):
        assert re.search(row, (ROOT / "docs" / "figures.md").read_text())
    assert "](CONTRIBUTING.md#a-report-from-your-device)" in page


def test_the_ten_options_exist() -> None:
    """Ten rows of one option each."""
    rows = re.findall(r"^\| `(--[^`]+)` \| (.+?) \| (.+?) \|", (ROOT / "README.md").read_text(), re.M)
    assert len({name for name, _, _ in rows}) == len(rows) == 10
    flags = {flag for parameter in serve.params for flag in parameter.opts}
    for name, _, vllm in rows:
        assert name in flags
        assert vllm.strip()


def test_the_picture_is_small_and_shown() -> None:
    picture = ROOT / "api" / "admin" / "live.png"
    assert "](api/admin/live.png)" in (ROOT / "README.md").read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 200_000
