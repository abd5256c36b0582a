"""Gather the facts about this machine: from child processes, sockets, folders and package metadata."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed_version
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from api.cli.doctor.facts import Blas, Disk, Facts, ModelOnDisk, Port, RequiredPackage
from api.cli.errors import OperatorError
from api.cli.machine import Answers, ask
from api.cli.models import disk_models
from api.cli.models.disk_models import DiskModel
from api.cli.models.memory_plan import memory_plan
from api.http.limits import Limits, fit_descriptors, wanted_descriptors
from api.options.back_end import installed_back_ends
from api.options.options import refuse_unknown_variables
from api.version import PACKAGE, own_version
from scheduler.engine.budget.readings import system_reader
from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.engines.machine_share import cores_of_process, gpus_of
from scheduler.errors import OptionError
from scheduler.shared.user_cache import user_cache_folder

_HOST = "127.0.0.1"
_ASK_SECONDS = 1.0
_EXTRAS = {"mlx-cpu": "cpu", "mlx-cuda-13": "cuda13"}
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def gather(ports: Sequence[int], folders: Sequence[Path]) -> Facts:
    """Return the facts. This takes some seconds, and more on a machine with many models."""
    back_ends = installed_back_ends()
    found = disk_models.find(folders, dialects=False)
    # The hub's cache may hold many, and each tokenizer takes a second.
    found = [disk_models.with_dialects([one])[0] if one.source == "folder" else one for one in found]
    answers, error = _ask([one.folder for one in found if one.is_model])
    models = tuple(_on_disk(one, answers) for one in found)
    machine = None if answers is None else answers.machine
    open_files = _open_files()
    wanted = Limits()
    return Facts(
        version=own_version(),
        platform=sys.platform,
        architecture=platform.machine(),
        python=platform.python_version(),
        back_ends=back_ends,
        cards=len(gpus_of(os.environ)),
        machine=machine,
        machine_error=error,
        limit_bytes=next((one.plan.limit_bytes for one in models if one.plan is not None), 0),
        physical_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        available_bytes=system_reader()().available_bytes,
        cores=len(cores_of_process()),
        quota_cores=_quota_cores(),
        blas=_blas() if back_ends else None,
        pins=pins(back_ends),
        ports=tuple(port_fact(number) for number in ports),
        disks=tuple(_disks()),
        open_files=open_files,
        wanted_files=wanted_descriptors(wanted),
        connections=fit_descriptors(wanted, open_files).connections,
        variable_error=_variable_error(os.environ),
        models=models,
    )


def _ask(folders: Sequence[Path]) -> tuple[Answers | None, str]:
    try:
        return ask(folders), ""
    except OperatorError as error:
        first, *others = str(error).splitlines()
        return None, " ".join([first, *others[-1:]])


def _on_disk(model: DiskModel, answers: Answers | None) -> ModelOnDisk:
    if not model.is_model or answers is None:
        return ModelOnDisk(model, None, reason=model.reason or "MLX does not work here")
    if (reason := answers.reasons.get(model.folder)) is not None:
        return ModelOnDisk(model, None, reason=" ".join(reason.split()))
    plan = memory_plan(model, answers.machine, answers.models.get(model.folder))
    return ModelOnDisk(model, plan, plan.reason)


def _blas() -> Blas:
    choice = prepare("auto", user_cache_folder(os.environ))
    return Blas(choice.name, choice.warning or "")


def _open_files() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _quota_cores() -> float | None:
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None  # Not Linux, an older kernel's groups, or the word `max`.


def pins(back_ends: Sequence[str], package: str = PACKAGE) -> tuple[RequiredPackage, ...]:
    """Return the packages that our metadata asks for on this platform, including the extras that brought the
    back ends. Return none where Penstock runs without being installed."""
    extras = ["", *(_EXTRAS[name] for name in back_ends if name in _EXTRAS)]
    try:
        texts = requires(package) or []
    except PackageNotFoundError:
        return ()
    return tuple(pin for text in texts if (pin := _pin(text, extras)) is not None)


def _pin(text: str, extras: Sequence[str]) -> RequiredPackage | None:
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return None
    if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
        return None
    found, accepted = "", False
    with suppress(PackageNotFoundError, InvalidVersion):
        found = installed_version(wanted.name)
        accepted = wanted.specifier.contains(found, prereleases=True)
    return RequiredPackage(wanted.name, str(wanted.specifier), found, accepted)


def port_fact(number: int) -> Port:
    """Return the state of the port: connect to it, then bind it as `serve` would, on the loopback address."""
    # Connect first: macOS lets 127.0.0.1 be bound beside another program's *, which it then hides.
    with suppress(OSError):
        socket.create_connection((_HOST, number), _ASK_SECONDS).close()
        return Port(number, "penstock" if _is_penstock(number) else "taken")
    with closing(socket.socket()) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_HOST, number))
            trial.listen(1)
        except OSError as error:
            return Port(number, "refused", error.strerror or str(error))
    return Port(number, "free")


def _is_penstock(number: int) -> bool:
    with (
        suppress(OSError, HTTPException),
        closing(HTTPConnection(_HOST, number, timeout=_ASK_SECONDS)) as one,
    ):
        one.request("GET", "/health")
        return one.getresponse().getheader("server", "") == PACKAGE
    return False


def _disks() -> Iterator[Disk]:
    yield _disk("models", disk_models.hub_cache())
    yield _disk("caches", user_cache_folder(os.environ))


def _disk(what: str, folder: Path) -> Disk:
    """Return the facts of the folder, or of the nearest existing one above it; create nothing."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    try:
        free_bytes = shutil.disk_usage(there).free
    except OSError:
        free_bytes = -1
    return Disk(what, folder, free_bytes, there.is_dir() and os.access(there, os.W_OK | os.X_OK))


def _variable_error(environment: Mapping[str, str]) -> str:
    try:
        refuse_unknown_variables(environment)
    except OptionError as error:
        return str(error)
    return ""
