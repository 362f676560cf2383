"""What is measured by `benchmarks.binaries`, as programs: `python -m benchmarks.reading WORK ...`.

    measure WHEELHOUSE LOCK FACTS   sha256 and facts of every wheel of a lock, in two processes, as `lock` does it
    code FILE                       the GPU code of a library
    elf FILE...                     the dynamic section, versions and symbols of libraries
    pyelftools FILE...              the same with pyelftools

Each prints how much it found, so that two programs can be seen to have done the same.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

PROCESSES = 2


def measure(wheelhouse: Path, lock_path: Path, facts: Path) -> str:
    """The facts of every wheel, written as `lock` writes them; the heaviest first."""
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - each program pays for what it uses
    from multiprocessing import get_context  # noqa: PLC0415

    from envspec.lock_toml import parse_lock  # noqa: PLC0415

    lock = parse_lock(lock_path.read_text(encoding="utf-8"), input_name=lock_path.name)
    python = lock.python
    packages = sorted(lock.packages, key=lambda package: -package.size)
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        futures = [
            pool.submit(measure_one, wheelhouse / each.sha256 / each.file, each.sha256, python, facts)
            for each in packages
        ]
        binaries = [future.result() for future in futures]
    return f"{len(binaries)} wheels, {sum(binaries)} binaries"


def measure_one(wheel: Path, sha256: str, python: str, facts_dir: Path) -> int:
    """One wheel: its sha256, then its facts; the number of its binaries."""
    from builder.agent.files import hash_file  # noqa: PLC0415
    from builder.measure import measure_wheel, write_facts  # noqa: PLC0415

    found = hash_file(os.fspath(wheel))
    if found != sha256:
        raise ValueError(f"{wheel.name} has sha256 {found}")
    facts = measure_wheel(wheel, filename=wheel.name, sha256=sha256, python=python)
    if facts.anomalies and not facts.files:
        raise ValueError(f"{wheel.name}: {facts.anomalies[0].detail}")
    write_facts(facts_dir, facts)
    return len(facts.binaries.binaries)


def list_code(path: Path) -> str:
    """Every piece of GPU code that the driver may load from a library, counted by target."""
    import mmap  # noqa: PLC0415
    from collections import Counter  # noqa: PLC0415

    from builder.elf import read_sections  # noqa: PLC0415
    from builder.fatbin import read_fatbins  # noqa: PLC0415

    codes: Counter[str] = Counter()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for name, offset, size in read_sections(content):
            if name == ".nv_fatbin":
                for entries in read_fatbins(content, offset, size):
                    codes.update(entry.code for entry in entries)
    return "\n".join(f"{code} {number}" for code, number in sorted(codes.items()))


def read_with_ours(paths: list[Path]) -> str:
    """Dynamic section, versions and symbols with `builder.elf`."""
    from builder.elf import read_elf_file  # noqa: PLC0415

    symbols = needed = 0
    for path in paths:
        facts = read_elf_file(path, symbols=True)
        if facts is not None and facts.symbols is not None:
            symbols += len(facts.symbols.undefined) + len(facts.symbols.exported)
            needed += len(facts.needed)
    return f"{symbols} symbols, {needed} needed"


def read_with_pyelftools(paths: list[Path]) -> str:
    """The same with pyelftools, as short as it can be said there."""
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    symbols = needed = 0
    for path in paths:
        with path.open("rb") as file:
            sections: dict[str, Any] = {section.name: section for section in ELFFile(file).iter_sections()}
            for tag in sections[".dynamic"].iter_tags():
                needed += tag.entry.d_tag == "DT_NEEDED"
            versions = sections[".gnu.version"]
            of_index = {
                each["vna_other"]: (each.name, need.name)
                for need, eachs in sections[".gnu.version_r"].iter_versions()
                for each in eachs
            }
            undefined = set()
            exported = set()
            for number, symbol in enumerate(sections[".dynsym"].iter_symbols()):
                if not symbol.name or symbol["st_info"]["bind"] == "STB_LOCAL":
                    continue
                if symbol["st_shndx"] == "SHN_UNDEF":
                    undefined.add((symbol.name, of_index.get(versions.get_symbol(number)["ndx"])))
                elif symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED"):
                    exported.add(symbol.name)
            symbols += len(undefined) + len(exported)
    return f"{symbols} symbols, {needed} needed"


def main(arguments: list[str]) -> None:
    """Run one of the programs."""
    work, *paths = arguments[0], *map(Path, arguments[1:])
    if work == "measure":
        print(measure(*paths))
    elif work == "code":
        print(list_code(*paths))
    elif work == "elf":
        print(read_with_ours(paths))
    else:
        print(read_with_pyelftools(paths))


if __name__ == "__main__":
    main(sys.argv[1:])
