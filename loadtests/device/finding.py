"""What the measurements of a device found, and the report of it: JSON to compute with, Markdown to read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
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

    def write(self, folder: Path) -> None:
        """Write `device.json` and `device.md` into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "device.json").write_text(json.dumps(asdict(self), indent=1) + "\n")
        (folder / "device.md").write_text("\n".join(self.lines()) + "\n")

    def lines(self) -> Iterator[str]:
        complaints = list(self.complaints())
        yield f"# Penstock on {self.machine.get('device', 'a device')}\n"
        extent = "quick run" if self.quick else "full run"
        yield f"{extent} of {self.seconds:.0f} s, model {self.model}: {len(complaints)} findings are wrong."
        yield from (f"- {complaint}" for complaint in complaints)
        yield "\n| machine | |\n|---|---|"
        yield from (f"| {name} | {_shown(value)} |" for name, value in self.machine.items())
        for section in self.sections:
            yield f"\n## {section.title}\n{section.expected}"
            names: tuple[str, ...] | None = None
            for finding in section.findings:
                if tuple(finding.figures) != names:
                    names = tuple(finding.figures)
                    yield "\n| " + " | ".join(["what", "judgement", *names]) + " |"
                    yield "|" + "---|" * (len(names) + 2)
                judged = f"{finding.judgement}: {finding.detail}" if finding.detail else finding.judgement
                cells = [finding.name, judged, *map(_shown, finding.figures.values())]
                yield "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def _shown(value: Figure) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def attempt(name: str, measure: Callable[[], Finding]) -> Finding:
    """Return the finding of `measure`. An exception becomes a finding, too, without the paths in its text, so
    that the next measurement follows."""
    try:
        return measure()
    except Exception as error:  # A device that we have never run on may raise anything.
        return Finding(name, "raised", detail=f"{type(error).__name__}: {_PATH.sub('...', str(error))}")
