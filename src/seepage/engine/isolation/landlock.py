"""Linux Landlock: a process gives up, for good, every right to files but a few (kernel 5.13, no privileges).

The numbers are those of linux/landlock.h; system calls from 424 on have the same number on every machine.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38  # prctl

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_IOCTL = 1 << 15
_FILE_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many of the rights on files a version knows: all of them are given up."""
_CONNECT, _SCOPES = 0b11, 0b11
"""TCP from version 4 on; abstract sockets and signals from version 6 on."""

READ = _EXECUTE | _READ_FILE | _READ_DIR
LIST = _READ_DIR
EVERYTHING = -1
USE = _READ_FILE | _WRITE_FILE | _IOCTL
"""For devices."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The kernel's version of Landlock; 0 where there is none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG))


def restrict(allowed: Iterable[tuple[Path, int]]) -> bool:
    """Keep only these rights on these files and what is below these folders; False where it cannot be done.

    It holds for this thread and all that it starts, so it must come before any other thread.
    """
    found = version()
    if not found:
        return False
    files = (1 << _FILE_RIGHTS_BY_VERSION[min(found, 5)]) - 1
    wanted = _Ruleset(files, _CONNECT if found >= 4 else 0, _SCOPES if found >= 6 else 0)
    size = 24 if found >= 6 else 16 if found >= 4 else 8
    ruleset = _syscall(_CREATE_RULESET, ctypes.byref(wanted), size, 0)
    if ruleset < 0:
        return False
    try:
        for path, rights in allowed:
            _allow(ruleset, path, rights & files)
        prctl = ctypes.CDLL(None).prctl
        if prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return _syscall(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no right
    try:
        if not path.is_dir():
            rights &= ~_READ_DIR
        rule = _PathBeneath(rights, parent)
        _syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)


def _syscall(number: int, *arguments: object) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return int(call(ctypes.c_long(number), *arguments))
