"""What macOS is for our code: names that are absent, options that are refused, files that do not exist.

Loaded at the start of every Python process of a simulated Mac (`__main__.py`). Our packages and their tests
get other modules for `sys`, `os`, `socket`, `time`, `resource`, `platform` and `ctypes`; CPython, trio and
MLX keep Linux's, on which they run. Sockets are changed for all.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import io
import os
import platform
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

PACKAGES = ("scheduler", "api", "loadtests", "tests")
PAIR_BYTES = 8192
"""PIPSIZ of XNU."""
MOST_PATH_BYTES = 103
"""`sun_path` has 104, of which one ends it."""
RELEASE = "26.2"

_FOOTPRINT_AT = 72
_KEEP_ALIVE, _DROP_TIME = 0x10, 0x80
"""Darwin's TCP_KEEPALIVE and TCP_RXT_CONNDROPTIME."""
_LINUX_IDLE, _LINUX_DROP_TIME = 4, 18
"""Linux's TCP_KEEPIDLE and TCP_USER_TIMEOUT, in milliseconds."""

_open, _listdir, _killpg = io.open, os.listdir, os.killpg

_ABSENT = {
    "os": "sched_ pidfd_ memfd_ MFD_ eventfd EFD_ posix_fa splice SPLICE setns unshare CLONE_ getrandom GRND_"
    " timerfd TFD_ copy_file_range P_PIDFD listxattr getxattr setxattr removexattr O_DIRECT O_PATH O_TMPFILE"
    " O_NOATIME pipe2" + (" waitid P_ALL P_PID P_PGID WNOWAIT" if sys.version_info < (3, 13) else ""),
    "socket": "AF_NETLINK AF_PACKET AF_VSOCK SO_PEER SO_PASS SO_DOMAIN SO_PROTOCOL SO_BINDTODEVICE SO_MARK"
    " SO_PRIORITY TCP_USER_TIMEOUT TCP_KEEPIDLE TCP_CORK TCP_QUICKACK TCP_INFO MSG_NOSIGNAL MSG_MORE"
    " MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK",
    "time": "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
    "resource": "prlimit RLIMIT_OFILE RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RUSAGE_THREAD",
}
"""How names begin that the modules do not have."""

_BETWEEN = ("pathlib", "os", "genericpath", "posixpath")
_NO_FILES = ("/proc/", "/sys/fs/cgroup", "/sys/devices", "/run/systemd", "/dev/full")


class View(ModuleType):
    """A module as macOS has it. What a test replaces in the real one is seen here, too."""

    def __init__(self, real: ModuleType, absent: tuple[str, ...], shown: Mapping[str, Any]) -> None:
        super().__init__(real.__name__)
        state = {"real": real, "absent": absent, "shown": dict(shown)}
        state["before"] = {name: getattr(real, name, None) for name in shown}
        object.__setattr__(self, "_state", state)

    def __getattribute__(self, name: str) -> Any:
        state = object.__getattribute__(self, "_state")
        real = state["real"]
        if name == "__dict__":
            # pytest looks there for what it is to put back.
            return {**real.__dict__, **{shown: getattr(self, shown) for shown in state["shown"]}}
        if name in state["shown"] and getattr(real, name, None) is state["before"][name]:
            return state["shown"][name]
        if state["absent"] and name.startswith(state["absent"]):
            raise AttributeError(f"macOS has no {real.__name__}.{name}", name=name, obj=self)
        return getattr(real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        state = object.__getattribute__(self, "_state")
        if name in state["shown"]:
            state["shown"][name] = value
        else:
            setattr(state["real"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, "_state")["real"], name)


def killpg(group: int, number: int) -> None:
    """XNU answers EPERM where all that is left of a group are zombies (kern_sig.c)."""
    states = []
    for pid in filter(str.isdigit, _listdir("/proc")):
        try:
            with _open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            states.append(fields[0])
    if states and set(states) == {"Z"}:
        raise PermissionError(errno.EPERM, "Operation not permitted")
    _killpg(group, number)


def getrusage(who: int) -> resource.struct_rusage:
    """`ru_maxrss` is in bytes."""
    found = list(_getrusage(who))
    found[2] *= 1024
    return resource.struct_rusage(found)


_getrusage = resource.getrusage


class LibSystem:
    """Does what our code calls of the C library, on Linux's own."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)

    def proc_pid_rusage(self, pid: int, flavor: int, usage: ctypes.Array[ctypes.c_char]) -> int:
        try:
            with _open(f"/proc/{pid}/statm") as file:
                pages = int(file.read().split()[1])
        except OSError:
            return -1
        struct.pack_into("<Q", usage, _FOOTPRINT_AT, pages * resource.getpagesize())
        return 0

    def sysctlbyname(self, name: bytes, value: Any, size: Any, new: None, new_size: int) -> int:
        value._obj.value = 1
        return 0

    def malloc_zone_pressure_relief(self, zone: None, goal: ctypes.c_size_t) -> None:
        self._libc.malloc_trim(0)

    def __getattr__(self, name: str) -> Any:
        if name in ("malloc_trim", "mallopt", "prctl", "gnu_get_libc_version"):
            raise AttributeError(name)
        return getattr(self._libc, name)


def _views() -> dict[str, ModuleType]:
    # Another object than any literal: where a test sets the platform, and takes it back, both are seen.
    sys.platform = "".join(("lin", "ux"))
    system = LibSystem()
    shown: dict[ModuleType, dict[str, Any]] = {
        sys: {"platform": "darwin"},
        os: {"killpg": killpg},
        socket: {"TCP_KEEPALIVE": _KEEP_ALIVE},
        time: {},
        resource: {"getrusage": getrusage},
        platform: {
            "system": lambda: "Darwin",
            "machine": lambda: "arm64",
            "release": lambda: "25.2.0",
            "mac_ver": lambda: (RELEASE, ("", "", ""), "arm64"),
        },
        ctypes: {"CDLL": lambda name=None, *_, **__: ctypes.CDLL(name) if name else system},
    }
    return {
        real.__name__: View(real, tuple(_ABSENT.get(real.__name__, "").split()), names)
        for real, names in shown.items()
    }


def _import_views() -> None:
    views, real_import = _views(), builtins.__import__

    def importer(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: tuple[str, ...] = (),
        level: int = 0,
    ) -> ModuleType:
        found = real_import(name, globals, locals, fromlist, level)
        importing = str((globals or {}).get("__name__", ""))
        if not _is_ours(importing) or importing == __name__:
            return found
        # `import os.path` is os, `from os import path` a name of it.
        return views.get(name if fromlist else name.partition(".")[0], found)

    setattr(builtins, "__import__", importer)  # noqa: B010  # with narrower types


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def _hide_files() -> None:
    for name in ("stat", "lstat", "open", "listdir", "scandir"):
        setattr(os, name, _hiding(getattr(os, name)))
    builtins.open = io.open = _hiding(io.open)


def _hiding(real: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(path: Any = ".", *rest: Any, **named: Any) -> Any:
        if not isinstance(path, int) and f"{os.fsdecode(path)}/".startswith(_NO_FILES) and _asked_by_us():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", os.fsdecode(path))
        return real(path, *rest, **named)

    return guarded


def _asked_by_us() -> bool:
    """Also through pathlib. This file looks at processes itself."""
    frame = sys._getframe(2)
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
        frame = frame.f_back
    return _is_ours(str(frame.f_globals.get("__name__", "")))


def _change_sockets() -> None:
    plain = socket.socket
    get, set_, bind, connect = plain.getsockopt, plain.setsockopt, plain.bind, plain.connect
    pair = socket.socketpair

    def getsockopt(self: socket.socket, level: int, option: int, *rest: Any) -> Any:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")
        return get(self, level, option, *rest)

    def setsockopt(self: socket.socket, level: int, option: int, *rest: Any) -> None:
        if level == socket.IPPROTO_TCP and option == _KEEP_ALIVE:
            option = _LINUX_IDLE
        elif level == socket.IPPROTO_TCP and option == _DROP_TIME:
            option, rest = _LINUX_DROP_TIME, (rest[0] * 1000,)
        set_(self, level, option, *rest)

    def checked(real: Callable[[socket.socket, Any], None]) -> Callable[[socket.socket, Any], None]:
        def to_path(self: socket.socket, address: Any) -> None:
            if self.family == socket.AF_UNIX and len(os.fsencode(address)) > MOST_PATH_BYTES:
                raise OSError("AF_UNIX path too long")
            real(self, address)

        return to_path

    def socketpair(*given: Any) -> tuple[socket.socket, socket.socket]:
        ends = pair(*given)
        for end in ends:
            # Linux doubles what it is given.
            set_(end, socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BYTES // 2)
            set_(end, socket.SOL_SOCKET, socket.SO_RCVBUF, PAIR_BYTES // 2)
        return ends

    replaced = {
        "getsockopt": getsockopt,
        "setsockopt": setsockopt,
        "bind": checked(bind),
        "connect": checked(connect),
    }
    for name, method in replaced.items():
        setattr(plain, name, method)
    setattr(socket, "socketpair", socketpair)  # noqa: B010  # with narrower types


def install() -> None:
    """Make this process one of a Mac."""
    _change_sockets()
    _hide_files()
    _import_views()
