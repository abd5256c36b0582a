"""What the facts mean, and what to do: pure. A problem is what stops `penstock serve` from serving."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from api.cli.doctor.facts import Disk, Facts, Port
from api.cli.models.reading import PlannedModel
from api.options.back_end import missing_back_end
from scheduler.engine.budget.limits import recommended_bytes
from scheduler.shared.gigabytes import gigabytes

Level: TypeAlias = Literal["ok", "note", "problem"]
_LITTLE_DISK_BYTES = 2_000_000_000
"""Less holds no model of any use."""
_SMALL_WORKING_SET = 0.7
"""Metal recommends two thirds of a small Mac's memory and three quarters of a large one's."""
_LARGE_MAC_BYTES = 32_000_000_000
_MOST_UNFIT = 8
"""Models that cannot be served, of which each is a finding."""
_LEFT_FOR_SYSTEM = 0.85


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    topic: str
    """What it is about; a port and a model by name."""
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
        what += (
            "; it computes in float32: weights of fewer bits take more memory than their files. Where that is"
            " short, --weights-dtype packed keeps quantised ones small, and is many times slower"
        )
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
    machine = facts.machine
    have = gigabytes(facts.physical_bytes)
    if facts.available_bytes is not None:
        have += f", {gigabytes(facts.available_bytes)} of it available"
    limit = f"; an engine takes up to {gigabytes(facts.limit_bytes)}" if facts.limit_bytes else ""
    if facts.limit_bytes and facts.available_bytes is not None and facts.available_bytes < facts.limit_bytes:
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
    if machine is None or machine.kind == "cpu" or not (limit := recommended_bytes(machine.info)):
        return
    if machine.kind == "cuda":
        free = machine.info.get("free_memory")
        rest = f", {gigabytes(int(free))} of it free" if free is not None else ""
        yield Finding("ok", "working set", f"{gigabytes(limit)} on the card{rest}")
        return
    what = f"Metal may keep {gigabytes(limit)} of {gigabytes(facts.physical_bytes)} resident"
    if facts.physical_bytes >= _LARGE_MAC_BYTES and limit < _LEFT_FOR_SYSTEM * facts.physical_bytes:
        more = int(facts.physical_bytes * _LEFT_FOR_SYSTEM) >> 20
        yield Finding(
            "ok" if limit > _SMALL_WORKING_SET * facts.physical_bytes else "note",
            "working set",
            what,
            f"for a larger model, until the next restart: sudo sysctl iogpu.wired_limit_mb={more}",
        )
    else:
        yield Finding("ok", "working set", what)


def _port(port: Port) -> Finding:
    name, other = f"port {port.number}", "serve --port N"
    match port.state:
        case "free":
            return Finding("ok", name, "free")
        case "penstock":
            return Finding(
                "note", name, f"a Penstock serves there: {port.remark}", f"for a second one: {other}"
            )
        case "taken":
            todo = f"lsof -i :{port.number} shows which; or {other}"
            return Finding("problem", name, "another program listens there", todo)
        case "refused":
            return Finding("problem", name, f"cannot be listened on: {port.remark}", other)


def _disk(disk: Disk) -> Finding:
    where = f"{disk.what} in {disk.folder}"
    if not disk.writable:
        variable = {"models": "HF_HOME"}.get(disk.what, "XDG_CACHE_HOME")
        return Finding("note", "disk", f"{where}: not writable", f"chown it, or set {variable} to another")
    free = f"{where}: {gigabytes(disk.free_bytes)} free"
    if disk.free_bytes < _LITTLE_DISK_BYTES:
        return Finding("note", "disk", free, "hf cache rm model/ID, or other files")
    return Finding("ok", "disk", free)


def _variables(facts: Facts) -> Iterator[Finding]:
    if facts.variable_error:
        yield Finding("problem", "variables", facts.variable_error, "unset it, or correct it")


def _log(facts: Facts) -> Iterator[Finding]:
    if facts.log is not None:
        # It may be of a server that is long gone.
        yield Finding("ok", "last log", f"{facts.log.file} {facts.log.error}".rstrip())


def _models(facts: Facts) -> Iterator[Finding]:
    if not facts.models or facts.machine is None:
        return
    fit = [one for one in facts.models if not one.reason]
    yield Finding(
        "ok" if fit else "problem",
        "models",
        f"{len(fit)} of {len(facts.models)} on disk can be served here",
        "penstock models says how many agents each serves" if fit else "see each model's reason",
    )
    unfit = [one for one in facts.models if one.reason]
    for one in unfit[:_MOST_UNFIT]:
        yield Finding("note", one.model.name, one.reason, _remedy(one))
    if len(unfit) > _MOST_UNFIT:
        yield Finding("note", "models", f"{len(unfit) - _MOST_UNFIT} more cannot be", "penstock models")


def _remedy(one: PlannedModel) -> str:
    """Return what to do about a model that cannot be served, if its reason does not end with it."""
    if one.plan is not None:
        return "a smaller or quantised one: mlx_lm.convert -q"
    is_cut = one.model.source == "hub" and re.search("cut|download", one.reason)
    return f"penstock pull {one.model.name.split('@')[0]}" if is_cut else ""


_PARTS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _back_end,
    _device,
    _memory,
    _working_set,
    lambda facts: map(_port, facts.ports),
    lambda facts: map(_disk, facts.disks),
    _variables,
    _log,
    _models,
)
