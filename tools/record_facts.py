"""Writes `tests/data/facts/`: facts of real wheels, cut down to what checks of binaries read.

    uv run python tools/record_facts.py torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl ...

What is kept is said in `tests/support/recorded.py`. Of the driver's functions in `cudaTypedefs.h` those are kept that a recorded library calls,
so the wheel of the CUDA runtime comes last.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.measure import measure_wheel
from envspec.binaries import Binary, BinaryFacts, VersionNeed, binary_facts_to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from envspec.facts import WheelFacts

FACTS = Path(__file__).resolve().parents[1] / "tests" / "data" / "facts"
PYTHON = "3.12"
INSPECTED_LIBRARIES = re.compile(r"libcuda\.|libcudart\.|libstdc\+\+\.|libtorch\.|libc10")
DRIVER_FUNCTION = re.compile(r"(cu[A-Z]\w*?)(?:_v[0-9])?(?:_pt[sd][sz])?")
LEAST_GLIBC = (2, 14)
"""What every library needs is not worth a line."""

COPIES = re.compile(r"mscclpp[^/]*\.so\.0|mscclpp_nccl|sm90/common_ops")


def record(wheel: Path) -> WheelFacts:
    """Measure a wheel and write what is kept of it; returns the whole facts."""
    with wheel.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    facts = measure_wheel(wheel, filename=wheel.name, sha256=sha256, python=PYTHON)
    kept = {
        "name": facts.name,
        "version": facts.version,
        "filename": facts.filename,
        "binaries": binary_facts_to_json(cut_down(facts.name, facts.binaries)),
    }
    (FACTS / f"{facts.name}-{facts.version}.json").write_text(rendered(kept), encoding="utf-8")
    return facts


def cut_down(package: str, measured: BinaryFacts) -> BinaryFacts:
    """What the checks read of the binaries of a package."""
    deciding = deciding_paths(measured.binaries)
    binaries = [
        cut_down_binary(binary, is_deciding=binary.path in deciding)
        for binary in measured.binaries
        if not COPIES.search(binary.path) and (binary.path in deciding or is_of_interest(binary))
    ]
    own = package.replace("-", "_")
    called = called_functions() if package.startswith("nvidia-") else set()
    return replace(
        measured,
        binaries=tuple(binaries),
        labels=tuple(each for each in measured.labels if each.path.startswith(f"{own}/") and each.key != "git_version"),
        driver_functions=tuple(each for each in measured.driver_functions if each[0] in called),
    )


def is_of_interest(binary: Binary) -> bool:
    """Whether a check reads more of a binary than the versions that it needs."""
    calls_driver = "libcuda.so.1" in binary.needed
    return bool(binary.gpu or calls_driver or binary.soname.startswith("libcudart") or has_fixed_place(binary))


def cut_down_binary(binary: Binary, *, is_deciding: bool) -> Binary:
    """A binary without names and needs that no check of a single wheel reads."""
    fixed = has_fixed_place(binary)
    driver = [each for each in binary.undefined if DRIVER_FUNCTION.fullmatch(each.name)]
    return replace(
        binary,
        soname=binary.soname if binary.soname.startswith("libcudart") else "",
        needed=tuple(name for name in binary.needed if INSPECTED_LIBRARIES.match(name)),
        rpath=binary.rpath if fixed else None,
        runpath=binary.runpath if fixed else None,
        version_needs=tuple(highest_needs(binary)) if is_deciding else (),
        version_definitions=(),
        undefined=tuple(driver) if "libcuda.so.1" in binary.needed else (),
        exports="\n".join(name for name in binary.exports.split("\n") if name.startswith("PyInit_")),
    )


def deciding_paths(binaries: Iterable[Binary]) -> set[str]:
    """The binaries that set the floors of a wheel: for each family of versions the first one with the highest."""
    worst: dict[str, tuple[tuple[int, ...], str]] = {}
    for binary in binaries:
        for _, versions in binary.version_needs:
            for family, version in families(versions).items():
                if version > worst.get(family, ((), ""))[0]:
                    worst[family] = (version, binary.path)
    return {path for _, path in worst.values()}


def highest_needs(binary: Binary) -> Iterable[VersionNeed]:
    """The highest version of each family that is needed of each library."""
    for library, versions in binary.version_needs:
        kept = {
            family: version
            for family, version in families(versions).items()
            if family != "GLIBC" or version >= LEAST_GLIBC
        }
        if kept:
            yield VersionNeed(library, tuple(f"{family}_{'.'.join(map(str, kept[family]))}" for family in sorted(kept)))


def families(versions: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The highest version of each family among names such as `GLIBC_2.34`."""
    highest: dict[str, tuple[int, ...]] = {}
    for name in versions:
        if found := re.fullmatch(r"(GLIBC|GLIBCXX|CXXABI)_([0-9.]+)", name):
            version = tuple(int(part) for part in found[2].split("."))
            highest[found[1]] = max(highest.get(found[1], ()), version)
    return highest


def has_fixed_place(binary: Binary) -> bool:
    """Whether a binary searches for libraries somewhere else than beside itself."""
    entries = [entry for text in (binary.rpath, binary.runpath) if text for entry in text.split(":")]
    return not all(entry.startswith(("$ORIGIN", "${ORIGIN}")) for entry in entries)


def called_functions() -> set[str]:
    """The driver's functions that the libraries recorded so far call."""
    called = set()
    for path in FACTS.glob("*.json"):
        for binary in json.loads(path.read_text(encoding="utf-8"))["binaries"]["binaries"]:
            for _, _, _, names in binary.get("undefined", ()):
                called |= {found[1] for name in names.split("\n") if (found := DRIVER_FUNCTION.fullmatch(name))}
    return called


def rendered(record: Mapping[str, Any]) -> str:
    """JSON with a short list on one line."""
    text = json.dumps(record, indent=1, sort_keys=True)
    items = r'(?:"[^"\[\]{}]*"|\d+)'
    short = re.compile(rf"\[\s+({items}(?:,\s+{items})*)\s+\]")
    return short.sub(lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text) + "\n"


if __name__ == "__main__":
    FACTS.mkdir(parents=True, exist_ok=True)
    for each in sys.argv[1:]:
        record(Path(each))
