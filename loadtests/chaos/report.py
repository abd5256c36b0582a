"""The report of a run: lines for a terminal, and one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtests.chaos.findings import Findings
from loadtests.chaos.soak import Soak
from loadtests.html_report import page

Section = tuple[str, list[tuple[str, str]]]
"""A heading, and named facts."""


_HOLDS = {
    "Chaos": "every answer was delivered once, and equals the undisturbed one",
    "Fuzz": "no engine died, no answer failed, and the event loop never stalled",
    "Soak": "every answer was delivered and was always the same, and nothing grew",
}
"""The sentence for a run without complaints, by title."""


def verdict(title: str, complaints: list[str]) -> str:
    return "; ".join(complaints) or _HOLDS[title]


def of_chaos(found: Findings) -> Iterator[Section]:
    sampled = found.asked - found.greedy
    yield (
        "Answers",
        [
            (
                "asked",
                f"{found.asked}: {found.greedy} greedy, {sampled} sampled; {found.streamed} streamed",
            ),
            ("tokens of the undisturbed run", f"{found.tokens:,}"),
            ("lost", f"{len(found.lost)}"),
            ("failed", f"{len(found.failed)}"),
            ("too many tokens, or out of order", f"{len(found.longer) + len(found.disordered)}"),
            ("greedy answers that differ", f"{len(found.greedy_parted)} of {found.greedy}"),
            ("sampled answers that differ", f"{len(found.sampled_parted)} of {sampled}"),
            ("of all answers, between two undisturbed runs", f"{len(found.control_parted)} of {found.asked}"),
            ("longest silence of a stream", f"{found.longest_pause_seconds:.1f} s"),
            *_gaps(found),
            ("planted poison", ", ".join(found.poison) or "none"),
        ],
    )
    if found.slow_steps:
        yield (
            "Steps that were slow or hung while clients left",
            [
                *((kind, str(times)) for kind, times in found.slow_steps.items()),
                ("clients that left", str(found.left)),
                (
                    "longest wait of a stream, beside restarts",
                    f"{max(found.waits.values(), default=0.0):.1f} s",
                ),
                ("the same of nine in ten undisturbed streams", f"{found.usual_wait_seconds:.1f} s"),
            ],
        )
    yield f"Strikes, in {found.seconds:.0f} s", [(kind, str(times)) for kind, times in found.strikes.items()]
    yield "The server's own metrics", [(name, f"{value:g}") for name, value in found.server.items()]


def _gaps(found: Findings) -> list[tuple[str, str]]:
    if not found.gaps:
        return []
    return [
        ("moments with one engine of several killed", f"{len(found.gaps)}"),
        ("longest pause of a stream at them", f"{max(found.gaps):.2f} s"),
        ("the same of streams that had just begun", f"{found.early_gap_seconds:.2f} s"),
        ("longest pause of the undisturbed runs", f"{found.usual_gap_seconds:.2f} s"),
    ]


def of_soak(soak: Soak) -> Iterator[Section]:
    yield (
        "Load",
        [
            ("time", f"{soak.seconds:.0f} s"),
            (
                "answers",
                f"{soak.answers}, {soak.failed} failed, {soak.parted} different from the first time",
            ),
            ("engines killed", str(soak.kills)),
            ("complaints of the prefix cache's integrity check", f"{soak.integrity_complaints:g}"),
        ],
    )
    yield (
        "Levels: mean of the first third after the warm-up, mean of the last, and maximum",
        [
            (level.name, f"{level.first:,.0f} → {level.last:,.0f} ({level.highest:,.0f})")
            for level in soak.levels
        ],
    )


def text(title: str, complaints: list[str], sections: Sequence[Section]) -> str:
    lines = [title, f"  {verdict(title, complaints)}"]
    for heading, facts in sections:
        lines.append(heading)
        lines += [f"  {name:52} {value}" for name, value in facts]
    return "\n".join(lines)


def write_html(path: Path, title: str, complaints: list[str], sections: Sequence[Section]) -> None:
    """Write the HTML file. Raise PlotsMissing if the extra `bench` is not installed."""
    failed, words = bool(complaints), verdict(title, complaints)
    written = page("chaos.html.j2", title=title, verdict=words, failed=failed, sections=sections)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written, "utf-8")
