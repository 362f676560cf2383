"""What a machine offers to an environment, beside its own files: a profile, not the machine on which a lock is made.

A lock must come out the same wherever it is made, so what a host has is stated here: the libraries of glibc and GCC that every manylinux wheel
may rely on, the driver's, and what the spec declares in `target.libraries`. Symbols that have a version are judged by that version; for the
few references without one, `envspec/data` lists what the libraries define, recorded by `tools/record_host_symbols.py` on Debian 12 (glibc 2.36,
GCC 12.2), and the names that each minor version of CPython exports.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from envspec.linker import Host

if TYPE_CHECKING:
    from collections.abc import Iterable

DATA = Path(__file__).parent / "data"

GLIBC_LIBRARIES = frozenset(
    {
        *("libc.so.6", "libm.so.6", "libmvec.so.1", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libutil.so.1"),
        *("libresolv.so.2", "libnsl.so.1", "libanl.so.1", "libBrokenLocale.so.1", "libthread_db.so.1"),
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    }
)
"""Of glibc itself; a process of Python has libc, libm, libdl, libpthread and libutil loaded."""

BASE_LIBRARIES = GLIBC_LIBRARIES | {"libgcc_s.so.1", "libstdc++.so.6", "libz.so.1"}
"""What every host is taken to have: of the list of PEP 600, that which is there on a server without a desktop."""

DESKTOP_LIBRARIES = frozenset(
    {
        *("libX11.so.6", "libXext.so.6", "libXrender.so.1", "libICE.so.6", "libSM.so.6", "libGL.so.1"),
        *("libgobject-2.0.so.0", "libgthread-2.0.so.0", "libglib-2.0.so.0", "libexpat.so.1", "libatomic.so.1"),
    }
)
"""The rest of the list of PEP 600: a wheel may rely on it, and a slim server does not have it."""

DRIVER_LIBRARIES = {
    "libcuda.so.1": re.compile(r"cu(?!File)[A-Z]\w*"),
    "libnvidia-ml.so.1": re.compile(r"nvml\w*"),
    "libnvidia-ml.so": re.compile(r"nvml\w*"),
    "libnvidia-ptxjitcompiler.so.1": re.compile(r"\w+"),
}
"""Libraries of the NVIDIA driver, with what their functions are called. Which version of the driver has a function is judged elsewhere."""

RECORDED_LIBRARIES = BASE_LIBRARIES | {"libnuma.so.1", "libgomp.so.1", "libatomic.so.1"}
"""Libraries whose symbols are recorded where the recording machine has them."""

_LOADED_FIRST = frozenset({"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"})
"""Every interpreter is linked against these: a copy of one in a wheel is never used."""

_ALWAYS_LOADED = (
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "libutil.so.1",
    "librt.so.1",
)
_PYTHON_LIBRARY = re.compile(r"libpython3(?:\.\d+)?\.so(?:\.1\.0)?")
_OF_A_PACKAGE = re.compile(r"_Z|Py|_Py|aoti_|torch_|cu[A-Z]|cuda[A-Z]|nccl|nvml|nvshmem")
"""Beginnings of names that never come from a library of the host which is not recorded."""


def host_profile(libraries: Iterable[str], python: str, *, offered: frozenset[str] | None = None) -> Host:
    """The host of an environment.

    Args:
        libraries: Sonames that the spec declares beyond the base.
        python: Minor version of the environment's Python.
        offered: Sonames that the very machine offers; None if it is not known, and the profile counts.
    """
    declared = frozenset(libraries)
    recorded = _recorded()
    names = cpython_symbols(python)
    always = frozenset().union(*(recorded.get(soname, frozenset()) for soname in _ALWAYS_LOADED))

    def defines(name: str, offered: frozenset[str]) -> bool:
        if name in always or (name in names if names else name.startswith(("Py", "_Py"))):
            return True
        unknown = False
        for soname in offered:
            functions = DRIVER_LIBRARIES.get(soname)
            if functions is not None and functions.fullmatch(name):
                return True
            if soname in recorded:
                if name in recorded[soname]:
                    return True
            elif functions is None and not is_interpreter(soname):
                unknown = True
        return unknown and not _OF_A_PACKAGE.match(name)

    there = BASE_LIBRARIES | declared if offered is None else GLIBC_LIBRARIES | declared | offered
    return Host(libraries=there | DRIVER_LIBRARIES.keys(), defines=defines, loaded=_LOADED_FIRST)


def is_interpreter(soname: str) -> bool:
    """Whether a soname is that of a shared libpython."""
    return _PYTHON_LIBRARY.fullmatch(soname) is not None


@lru_cache(maxsize=8)
def cpython_symbols(python: str) -> frozenset[str]:
    """The names that a minor version of CPython exports; empty if it is not recorded."""
    minor = python.partition(".")[2]
    found = set()
    for line in (DATA / "cpython-symbols.txt").read_text(encoding="utf-8").splitlines():
        name, _, minors = line.partition(" ")
        if minor in minors.split(","):
            found.add(name)
    return frozenset(found)


@lru_cache(maxsize=1)
def _recorded() -> dict[str, frozenset[str]]:
    """Soname -> symbols."""
    found: dict[str, frozenset[str]] = {}
    for section in (DATA / "host-symbols.txt").read_text(encoding="utf-8").split("[")[1:]:
        soname, _, names = section.partition("]\n")
        found[soname] = frozenset(names.split("\n"))
    return found
