"""What the measurements of a device found: one line each, with figures, and whether it is as it should be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Figure: TypeAlias = float | int | str
Judgement: TypeAlias = Literal["right", "wrong", "raised", "measured"]
"""`measured`: there is no expectation, the figure itself is asked for."""
_PATH = re.compile(r"""(["'])~?/.*?\1|(?<![\w.])~?/\S[^:\n]*""")
"""An absolute path, in quotes or up to a colon, for a folder's name may have spaces. Relative paths are
inside packages, and stay."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`name` is what was done, `figures` what came out; their names have units."""

    name: str
    judgement: Judgement
    figures: Mapping[str, Figure] = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    expected: str
    """What the figures are held to, in a sentence."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """`machine`: what the device is and which versions ran; no names of persons, hosts or folders."""

    machine: Mapping[str, Figure]
    model: str
    quick: bool
    seconds: float
    sections: tuple[Section, ...]

    def complaints(self) -> Iterator[str]:
        for section in self.sections:
            for finding in section.findings:
                if finding.judgement in ("wrong", "raised"):
                    yield f"{section.title}: {finding.name}: {finding.detail or finding.judgement}"


def attempt(name: str, measure: Callable[[], Finding]) -> Finding:
    """Return the finding of `measure`. An exception becomes a finding, too, without the paths in its text, so
    that the next measurement follows."""
    try:
        return measure()
    except Exception as error:  # A device that we have never run on may raise anything.
        return Finding(name, "raised", detail=f"{type(error).__name__}: {_PATH.sub('...', str(error))}")
