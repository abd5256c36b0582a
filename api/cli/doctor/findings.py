"""What the facts mean, and what to do: pure. A problem is what stops `penstock serve` from serving."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from api.cli.doctor.facts import Facts
from api.cli.machine import memory_plan
from api.options.back_end import missing_back_end
from scheduler.engine.budget.limits import MemoryTooSmall, recommended_bytes
from scheduler.shared.gigabytes import gigabytes

Level: TypeAlias = Literal["ok", "note", "problem"]
_LARGE_MAC_BYTES = 32_000_000_000
_LEFT_FOR_SYSTEM = 0.85


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    topic: str
    what: str
    todo: str = ""
    """A command, or what to change; empty if there is nothing to do."""


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings, in the order in which they are shown."""
    return tuple(one for part in _PARTS for one in part(facts))


def serves(found: Iterable[Finding]) -> bool:
    return all(one.level != "problem" for one in found)


def _back_end(facts: Facts) -> Iterator[Finding]:
    if missing := missing_back_end(facts.platform, facts.back_ends):
        what, _, todo = missing.partition(": ")
        yield Finding("problem", "mlx", what, todo)
    elif len(facts.back_ends) > 1:
        both = " and ".join(facts.back_ends)
        yield Finding(
            "note",
            "mlx",
            f"{both} are installed; both bring libmlx.so, and the later one has overwritten the other's",
            "make a new environment with one of penstock[cpu] and penstock[cuda13]",
        )
    elif facts.machine is None:
        todo = "install it again: pip install --force-reinstall --no-deps mlx " + " ".join(facts.back_ends)
        if any(name.startswith("mlx-cuda") for name in facts.back_ends):
            todo = "nvidia-smi must show the card: install NVIDIA's driver, or penstock[cpu]"
        error = " ".join(facts.machine_error.split()) or "MLX does not work here"
        yield Finding("problem", "mlx", error, todo)


def _device(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    if machine is None:
        return
    cores = f"{facts.cores} {'core' if facts.cores == 1 else 'cores'}"
    what = f"{machine.device}, {cores}" if machine.kind == "cpu" else f"{machine.device} ({machine.kind})"
    if machine.wide_weights:
        what += "; it computes in float32, in which weights of fewer bits take more memory than their files"
    if machine.kind == "cpu" and facts.platform == "darwin":
        todo = "run on the Mac itself, not in a virtual machine"
        if facts.architecture == "x86_64":
            todo = "install Penstock with a Python for Apple silicon: this one runs under Rosetta"
        yield Finding("note", "device", f"{what}; Metal is not there", todo)
    elif machine.kind == "cpu" and facts.cards:
        yield Finding(
            "note",
            "device",
            f"{what}; {facts.cards} NVIDIA {'card is' if facts.cards == 1 else 'cards are'} not used",
            "install 'penstock[cuda13]' in a new environment",
        )
    else:
        yield Finding("ok", "device", what)


def _memory(facts: Facts) -> Iterator[Finding]:
    machine, limit_bytes = facts.machine, 0
    if machine is not None:
        with suppress(MemoryTooSmall):
            limit_bytes = memory_plan(machine, 0).limit_bytes
    have = gigabytes(facts.physical_bytes)
    if facts.available_bytes is not None:
        have += f", {gigabytes(facts.available_bytes)} of it available"
    limit = f"; an engine takes up to {gigabytes(limit_bytes)}" if limit_bytes else ""
    if facts.available_bytes is not None and facts.available_bytes < limit_bytes:
        yield Finding(
            "note",
            "memory",
            f"{have}{limit}, which is more",
            f"end other programs, or serve --memory-limit {facts.available_bytes // 10**6}MB",
        )
    else:
        yield Finding("ok", "memory", have + limit)
    if machine is not None and machine.machine_bytes < facts.physical_bytes:
        yield Finding(
            "note",
            "limits",
            f"a control group allows {gigabytes(machine.machine_bytes)} of {have.split(',')[0]}",
            "raise MemoryMax= of the unit, or --memory of the container",
        )


def _working_set(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    if machine is None or machine.kind != "metal" or not (limit := recommended_bytes(machine.info)):
        return
    what = f"Metal may keep {gigabytes(limit)} of {gigabytes(facts.physical_bytes)} resident"
    more, todo = int(facts.physical_bytes * _LEFT_FOR_SYSTEM), ""
    if facts.physical_bytes >= _LARGE_MAC_BYTES and limit < more:
        todo = f"for a larger model, until the next restart: sudo sysctl iogpu.wired_limit_mb={more >> 20}"
    yield Finding("ok", "working set", what, todo)


def _port(facts: Facts) -> Iterator[Finding]:
    port, other = facts.port, "serve --port N"
    name = f"port {port.number}"
    match port.state:
        case "free":
            yield Finding("ok", name, "free")
        case "penstock":
            yield Finding(
                "note", name, f"a Penstock serves there: {port.remark}", f"for a second one: {other}"
            )
        case "taken":
            todo = f"lsof -i :{port.number} shows which; or {other}"
            yield Finding("problem", name, "another program listens there", todo)
        case "refused":
            yield Finding("problem", name, f"cannot be listened on: {port.remark}", other)


def _variables(facts: Facts) -> Iterator[Finding]:
    if facts.variable_error:
        yield Finding("problem", "variables", facts.variable_error, "unset it, or correct it")


def _models(facts: Facts) -> Iterator[Finding]:
    good = sum(not one.reason for one in facts.models)
    what = f"{good} of {len(facts.models)} on disk can be served, as far as their files show"
    todo = "" if good == len(facts.models) else "penstock models says why others cannot"
    yield Finding("ok" if good else "problem", "models", what, todo)


_PARTS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _back_end,
    _device,
    _memory,
    _working_set,
    _port,
    _variables,
    _models,
)
