"""The report of a device: JSON to compute with, Markdown to read and to send in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from loadtests.device.finding import DeviceReport, Figure, Finding, Section


def write(report: DeviceReport, folder: Path) -> tuple[Path, Path]:
    """Write `device.json` and `device.md` into `folder`, and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    data, text = folder / "device.json", folder / "device.md"
    data.write_text(json.dumps(asdict(report), indent=1) + "\n")
    text.write_text(markdown(report))
    return data, text


def markdown(report: DeviceReport) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: DeviceReport) -> Iterator[str]:
    yield f"# Penstock on {report.machine.get('device', 'a device')}"
    yield ""
    complaints = list(report.complaints())
    extent = "quick run" if report.quick else "full run"
    yield f"{extent} of {report.seconds:.0f} s, model {report.model}: {len(complaints)} findings are wrong."
    yield from (f"- {complaint}" for complaint in complaints)
    yield ""
    yield "| machine | |"
    yield "|---|---|"
    yield from (f"| {name} | {_shown(value)} |" for name, value in report.machine.items())
    for section in report.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield ""
    yield f"## {section.title}"
    yield section.expected
    names: tuple[str, ...] = ()
    for finding in section.findings:
        if tuple(finding.figures) != names or not names:
            names = tuple(finding.figures)
            yield ""
            yield "| " + " | ".join(["what", "judgement", *names]) + " |"
            yield "|" + "---|" * (len(names) + 2)
        yield _row(finding)


def _row(finding: Finding) -> str:
    judged = f"{finding.judgement}: {finding.detail}" if finding.detail else finding.judgement
    cells = [finding.name, judged, *map(_shown, finding.figures.values())]
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def _shown(value: Figure) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
