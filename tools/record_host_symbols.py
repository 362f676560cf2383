"""Writes `envspec/data/`: the symbols that a host and CPython offer, as they are on this machine.

The simulated linker needs them only for references without a version, of which there are few: what has a version is judged by it. Run again to
add a version of CPython:

    uv run python tools/record_host_symbols.py libpython3.10.so.1.0 libpython3.11.so.1.0 ...

Args:
    Paths of shared libpython files, one for each minor version.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

from builder.elf import read_elf_file
from envspec.host import DATA, RECORDED_LIBRARIES

FOLDERS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64")


def exported(path: Path) -> frozenset[str]:
    """The symbols that a library offers."""
    facts = read_elf_file(path, symbols=True)
    if facts is None or facts.symbols is None:
        raise SystemExit(f"{path} is no library")
    return facts.symbols.exported


def record_host() -> None:
    """Write `host-symbols.txt`."""
    lines = []
    for soname in sorted(RECORDED_LIBRARIES):
        found = [Path(folder, soname) for folder in FOLDERS if Path(folder, soname).is_file()]
        if found:
            lines += [f"[{soname}]", *sorted(exported(found[0]))]
    (DATA / "host-symbols.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def record_cpython(libraries: list[Path]) -> None:
    """Write `cpython-symbols.txt`."""
    minors: dict[str, set[int]] = defaultdict(set)
    for library in libraries:
        match = re.fullmatch(r"libpython3\.(\d+)\.so\.1\.0", library.name)
        if match is None:
            raise SystemExit(f"{library.name} is no `libpython3.<minor>.so.1.0`")
        for name in exported(library):
            if name.startswith(("Py", "_Py")):
                minors[name].add(int(match[1]))
    lines = [f"{name} {','.join(map(str, sorted(found)))}" for name, found in sorted(minors.items())]
    (DATA / "cpython-symbols.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record_host()
    record_cpython([Path(each) for each in sys.argv[1:]])
