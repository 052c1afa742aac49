"""What the process of an attack may touch: Python code, the machine's libraries, and nothing else.

Two locks. The kernel's (Landlock, where there is one) holds against every library; it knows folders. Python's
own (an audit hook) knows kinds of files, so it also keeps data sets that ship inside packages shut, and it is
all there is on other systems: there it stops mistakes, not malice.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seepage.engine.isolation import landlock

_CODE = (".py", ".pyc", ".so", ".pyd", ".pth", ".egg-link")
_MACHINE = (
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/local/lib",
    "/usr/local/cuda",
    "/opt/rocm",
)
_SYSTEM = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/self",
    "/sys/devices",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/dri", "/dev/kfd")
_SHIPPED_DATA = (("sklearn", "datasets/data"), ("sklearn", "datasets/images"), ("skimage", "data"))
"""Data sets inside packages that seepage's own loaders read."""
_SKIPPED = frozenset({"seepage-runs", "node_modules", "__pypackages__"})
_MOST_FILES = 20_000
_FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "pty.spawn",
    "socket.connect",
    "socket.bind",
)
_REMEDY = "an attack gets what it may know from the audit; name files of its own with may_read"
_PACKAGES = ("site-packages", "dist-packages")
"""What folders of installed packages are called; the latter by Debian."""


def confine(path: Sequence[str], may_read: Sequence[str], scratch: str) -> bool:
    """Lock this process in; True if the kernel holds the lock too. Must come before any thread is started.

    path: where modules are imported from. may_read: further files or folders that the user grants.
    scratch: an empty folder for whatever wants to write.
    """
    libraries = _libraries(path)
    granted = [Path(entry).resolve() for entry in may_read]
    empty = Path(scratch).resolve()
    own = [Path(entry).resolve() for entry in path if entry and not _below(Path(entry).resolve(), libraries)]
    allowed = [(folder, landlock.READ) for folder in (*libraries, *map(Path, _SYSTEM), *granted)]
    allowed.append((empty, landlock.EVERYTHING))
    allowed += [(device, landlock.USE) for device in _devices()]
    allowed += [rule for folder in own for rule in _code_below(folder)]
    by_kernel = landlock.restrict(allowed)
    _hook([*libraries, empty, *granted], own)
    return by_kernel


def _libraries(path: Sequence[str]) -> tuple[Path, ...]:
    """Folders of installed Python packages, of Python itself and of the machine's libraries.

    Environments that are stacked (by PYTHONPATH or a .pth file) have several folders of packages on the path.
    """
    known = sysconfig.get_paths()
    folders = [known[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [
        *site.getsitepackages(),
        *(entry for entry in path if Path(entry).name in _PACKAGES),
        site.getusersitepackages(),
        *_MACHINE,
        str(Path(sys.executable).parent),
    ]
    folders += [str(Path(sys.base_prefix) / "lib")]
    return tuple(dict.fromkeys(Path(folder).resolve() for folder in folders))


def _devices() -> list[Path]:
    """Nothing that holds data: random numbers, and GPUs, which are used through their files."""
    return [Path(name) for name in _DEVICES] + sorted(Path("/dev").glob("nvidia*"))


def _code_below(folder: Path) -> Iterator[tuple[Path, int]]:
    """A user's own folder may hold the data beside the code: its names may be listed, its code read."""
    if folder.is_file():  # a zip of modules
        yield folder, landlock.READ
        return
    yield folder, landlock.LIST
    count = 0
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
        for name in files:
            if name.endswith(_CODE):
                yield Path(where) / name, landlock.READ
                count += 1
        if count > _MOST_FILES:
            return


def _shipped_data() -> list[Path]:
    found = []
    for package, inside in _SHIPPED_DATA:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            found.append(Path(place).resolve() / inside)
    return found


def _hook(readable: Sequence[Path], own: Sequence[Path]) -> None:
    open_to_all = [str(folder) for folder in (*readable, *_SYSTEM, *_DEVICES)]
    code_only = [str(folder) for folder in own]
    shut = [str(folder) for folder in _shipped_data()]

    def below(place: str, folders: Sequence[str]) -> bool:
        return any(place == folder or place.startswith(folder + os.sep) for folder in folders)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FORBIDDEN:
            raise PermissionError(f"an attack may not call {event}: {_REMEDY}")
        if event != "open" or isinstance(arguments[0], int | None):
            return
        place = str(Path(os.fsdecode(arguments[0])).resolve())
        is_code = place.endswith(_CODE)
        if below(place, open_to_all):
            allowed = is_code or not below(place, shut)
        else:
            allowed = is_code and below(place, code_only)
        if not allowed:
            raise PermissionError(f"an attack may not open '{Path(place).name}': {_REMEDY}")

    sys.addaudithook(watch)


def _below(folder: Path, others: Sequence[Path]) -> bool:
    return any(folder == other or other in folder.parents for other in others)
