"""`python -m tests.scheduler.engine.mlx.zoo [NAME ...]`: check the modules of the installed mlx-lm, and print
a table. Without names all of them, which takes a quarter of an hour or more. Ends with status 1 where a
verdict is not the known one (`faults.py`)."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from tests.scheduler.engine.mlx.zoo.census import NO_MODELS, NOT_BUILT, names
from tests.scheduler.engine.mlx.zoo.company import Verdict, judged
from tests.scheduler.engine.mlx.zoo.faults import FALLBACKS, FAULTS
from tests.scheduler.engine.mlx.zoo.weights import REFUSED, base_of, in_weights

_ONLY_JUDGE = "--only-judge"
_EXAMPLES, _PAIRS = 20, 10
"""Schedules of each model."""


def _in_a_process(name: str, limit_seconds: float) -> Verdict:
    """In a process of its own: a model may end it, or never come back."""
    command = [sys.executable, "-m", __package__, _ONLY_JUDGE, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_seconds, check=False)
    except subprocess.TimeoutExpired:
        return Verdict({"process": f"raises nothing, and is not done after {limit_seconds:.0f} s"})
    if done.returncode:
        return Verdict({"process": f"raises: ended with {done.returncode}: {done.stderr[-200:]}"})
    return Verdict(**json.loads(done.stdout.splitlines()[-1]))


def table_row(name: str, verdict: Verdict) -> str:
    scenes: dict[str, list[str]] = {}
    for scene, found in verdict.scenes.items():
        if found != "right":
            scenes.setdefault(found, []).append(scene)
    wrong = [f"{', '.join(those)}: {found}" for found, those in scenes.items()]
    cause = f" [{FAULTS[name]}]" if name in FAULTS else ""
    how = ", ".join(verdict.fallbacks)
    return f"| {name} | {verdict.outcome} | {how} | {verdict.largest:.0e} | {'; '.join(wrong)}{cause} |"


def unexpected(verdicts: dict[str, Verdict]) -> list[str]:
    """Those that are wrong and not known to be, or known to be wrong and right."""
    return [
        name
        for name, verdict in verdicts.items()
        if (verdict.outcome != "right") != bool({name, base_of(name)} & FAULTS.keys())
        or tuple(verdict.fallbacks) != FALLBACKS.get(base_of(name), ((), ""))[0]
    ]


def _check(wanted: Iterable[str], options: argparse.Namespace) -> dict[str, Verdict]:
    def one(name: str) -> tuple[str, Verdict]:
        verdict = _in_a_process(name, options.seconds)
        print(table_row(name, verdict), file=sys.stderr, flush=True)
        return name, verdict

    with ThreadPoolExecutor(options.workers) as pool:
        return dict(pool.map(one, wanted))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    parser.add_argument("--seconds", type=float, default=600, help="time limit of each")
    parser.add_argument(_ONLY_JUDGE, metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.only_judge:
        print(json.dumps(asdict(judged(options.only_judge, _EXAMPLES, _PAIRS))))
        return 0
    verdicts = _check(options.names or [*names(), *in_weights()], options)
    print("| module | outcome | fallbacks | largest difference | where |\n|---|---|---|---|---|")
    for name, verdict in sorted(verdicts.items()):
        print(table_row(name, verdict))
    outcomes: dict[str, Any] = {}
    for verdict in verdicts.values():
        outcomes[verdict.outcome] = outcomes.get(verdict.outcome, 0) + 1
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    print(f"\n{len(verdicts)} checked: {counts}")
    if not options.names:
        print(f"not built: {', '.join(NOT_BUILT)}; no models: {', '.join(NO_MODELS)}")
        print(f"refused by the CPU back end: {', '.join(REFUSED)}")
    surprises = unexpected(verdicts)
    if surprises:
        print(f"not as faults.py has it: {', '.join(surprises)}")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
