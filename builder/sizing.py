"""The sizes of what a lock names, from what this machine has: facts of wheels, manifests of unpacked ones, bytecode, libraries on the disk."""

from __future__ import annotations

import mmap
from collections import Counter
from typing import TYPE_CHECKING

from builder.binary_facts import ELF_HEADER_BYTES, LOADABLE_GPU_SECTION, cubin_code
from builder.elf import read_sections
from builder.elf_image import ElfDamaged
from builder.fatbin import FatbinDamaged, read_fatbins
from builder.measure import read_facts
from envspec.lock import parts
from envspec.sizes import PackageSize, raw_gpu_code, sizes_by_kind, total
from envspec.tree import manifest_lines, parse_line

if TYPE_CHECKING:
    from pathlib import Path

    from builder.agent.store import Store
    from envspec.facts import WheelFacts
    from envspec.lock import Lock


def measure_sizes(lock: Lock, store: Store) -> tuple[PackageSize, ...]:
    """What each package takes, in the order of the lock. Nothing is fetched; what is not known here stays unknown.

    Args:
        lock: The lock.
        store: Of this machine.
    """
    versions = {package.name: package.version for package in lock.packages}
    versions |= {overlay.package: overlay.version for overlay in lock.overlays}
    found: list[PackageSize] = []
    for part in parts(lock):
        facts = read_facts(store.facts, part.sha256, lock.python)
        tree = store.tree(part.tree)
        files = _files_of(facts, tree.manifest_path)
        kinds: dict[str, int] | None = None
        gpu: dict[str, int] = {}
        if files is not None:
            binaries = {binary.path for binary in facts.binaries.binaries} if facts else set()
            bytecode = _bytecode(store, part.tree)
            kinds = {**sizes_by_kind(files, binaries)}
            if bytecode:
                kinds["bytecode"] = kinds.get("bytecode", 0) + bytecode
            gpu = _raw_gpu_code(files, facts, tree.path)
        if facts is not None and tree.path.is_dir():
            gpu = total([gpu, *(_gpu_code(tree.path / each.path) for each in facts.binaries.binaries if each.gpu)])
        found.append(
            PackageSize(name=part.package, version=versions[part.package], wheel=part.size, kinds=kinds, gpu_code=gpu)
        )
    return tuple(found)


def _files_of(facts: WheelFacts | None, manifest_path: Path) -> list[tuple[str, int]] | None:
    if facts is not None:
        return [(file.path, file.size) for file in facts.files]
    return _sizes_in(manifest_path)


def _sizes_in(manifest_path: Path) -> list[tuple[str, int]] | None:
    """Path and size of each file of a manifest; None if it is not there, or is none."""
    try:
        lines = manifest_lines(manifest_path.read_text(encoding="ascii"))
        entries = [parse_line(line) for line in lines if line.endswith(" type=file")]
    except (OSError, ValueError):
        return None
    return [(entry.path, entry.size) for entry in entries]


def _bytecode(store: Store, tree: str) -> int:
    """Bytes of the bytecode of a tree; where there is some for several interpreters, of the largest."""
    found = [_sizes_in(path) or [] for path in (store.root / "bytecode").glob(f"{tree}-*.mtree")]
    return max((sum(size for _, size in sizes) for sizes in found), default=0)


def _raw_gpu_code(files: list[tuple[str, int]], facts: WheelFacts | None, tree: Path) -> dict[str, int]:
    """Code -> bytes of raw cubins; their first bytes say what they are for, where they lie unpacked here, else their names."""
    codes = facts.binaries.cubins if facts else ()
    by_name = raw_gpu_code(files)
    if len(codes) == 1:
        return {codes[0].code: sum(by_name.values())}
    if set(by_name) <= {code for code, _ in codes} or not tree.is_dir():
        return by_name
    found: Counter[str] = Counter()
    for path, size in files:
        if path.endswith(".cubin"):
            try:
                with (tree / path).open("rb") as file:
                    found[cubin_code(file.read(ELF_HEADER_BYTES), path)] += size
            except (OSError, ValueError):
                found["raw"] += size
    return dict(found)


def _gpu_code(library: Path) -> dict[str, int]:
    """Code -> bytes inside of a library; what cannot be read has none."""
    sizes: Counter[str] = Counter()
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            for name, offset, size in read_sections(content):
                if name == LOADABLE_GPU_SECTION:
                    for entries in read_fatbins(content, offset, size):
                        for entry in entries:
                            sizes[entry.code] += entry.payload_size
    except (OSError, ValueError, ElfDamaged, FatbinDamaged):
        return {}
    return dict(sizes)
