"""A venv that envspec did not build: which of its packages are bit for bit the locked ones, and do its imports and probes pass?

Nothing in the venv is written or believed: each distribution is read to its last byte, as the tree that its wheel would give. What its installer
added (RECORD, scripts, bytecode) is left out of that.
"""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import process
from builder.agent.reuse import Installed, find_installed, repack, wheel_key
from envspec.errors import EnvspecError
from envspec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from envspec.lock import Lock

ASK_TIMEOUT_S = 60.0
VERSION_FILE_LIMIT_BYTES = 1 << 16
SHOWN_FILES = 20

_ASK = """
import json, platform, sys, sysconfig
print(json.dumps({"prefix": sys.prefix, "version": platform.python_version(), "site": sysconfig.get_path("purelib")}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Venv:
    """An interpreter and where its packages lie."""

    python: Path
    prefix: Path
    version: str
    """`3.12.3`."""

    site: Path
    """Its folder of packages."""

    @property
    def minor(self) -> str:
        """`3.12`."""
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageComparison:
    """One package of the lock, or of the venv, beside the other."""

    package: str
    kind: str
    """`locked`: bit for bit. `unpatched`: the locked base wheel without its patches. `edited`: files were changed after it was installed.
    `other build`: the version is right, the bytes are another wheel's. `other version`. `missing`. `extra`: the lock has it not."""

    version: str = ""
    """As it is there; empty if it is not."""

    detail: str = ""
    files: tuple[str, ...] = ()
    """Those that were edited."""

    cuda: str = ""
    """What its `version.py` says."""

    def to_json(self) -> dict[str, Any]:
        """The record that receipts and `--json` carry."""
        return {
            "package": self.package,
            "kind": self.kind,
            "version": self.version or None,
            "detail": self.detail,
            "files": list(self.files[:SHOWN_FILES]),
            "cuda": self.cuda or None,
        }


def ask_python(python: Path, environ: Mapping[str, str]) -> Venv:
    """What an interpreter is.

    Args:
        python: Its path; the prefix of a venv will do.
        environ: This process's environment.

    Raises:
        EnvspecError: It is none.
    """
    program = python / "bin" / "python" if python.is_dir() else python
    clean = {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    done = process.run([os.fspath(program.absolute()), "-I", "-c", _ASK], env=clean, timeout_s=ASK_TIMEOUT_S)
    try:
        answer = json.loads(done.stdout)
        venv = Venv(
            python=program.absolute(),
            prefix=Path(str(answer["prefix"])),
            version=str(answer["version"]),
            site=Path(str(answer["site"])),
        )
    except (ValueError, KeyError, TypeError) as error:
        said = (done.stderr.strip().splitlines() or [f"rc {done.returncode}"])[-1]
        raise EnvspecError(
            f"`{python}` does not answer as a Python does: {printable(said[:200])}",
            input_name="--python",
            hint="give an interpreter (`/opt/venv/bin/python`), or the folder of a venv",
        ) from error
    if not venv.site.is_dir():
        raise EnvspecError(f"`{venv.site}`, where `{python}` has its packages, is not there", input_name="--python")
    return venv


def compare_packages(venv: Venv, lock: Lock, advance: Callable[[int], None]) -> tuple[PackageComparison, ...]:
    """Compare the packages of a venv with those of a lock, byte for byte.

    Args:
        venv: The venv.
        lock: The lock.
        advance: Told the packages as they are done.

    Returns:
        One for each package of the lock, then those that the lock has not.
    """
    installed = find_installed(venv.site, venv.minor)
    if venv.site.parent.name == "python3" or not installed:
        installed |= find_installed(venv.prefix, venv.minor)
    by_name: dict[str, tuple[str, Installed]] = {name: (version, where) for (name, version), where in installed.items()}
    wanted = list(_wanted(lock))
    # Of a file that two packages have, only one has its own: of the other it cannot be told from its bytes what else is as locked.
    shared = {
        name: finding.message
        for finding in lock.findings
        if finding.check == "file-collision"
        for name in finding.subject.split(" and ")
    }

    def look(row: tuple[str, str, tuple[tuple[str, str, str], ...]]) -> PackageComparison:
        try:
            return _compare(row, by_name, venv, shared)
        finally:
            advance(1)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as several:
        found = list(several.map(look, wanted))
    names = {name for name, _, _ in wanted}
    found += [
        PackageComparison(package=name, kind="extra", version=version, detail="the lock has it not")
        for name, (version, _) in sorted(by_name.items())
        if name not in names
    ]
    return tuple(found)


def _wanted(lock: Lock) -> Iterator[tuple[str, str, tuple[tuple[str, str, str], ...]]]:
    """Name, version, and the wheels that will do: kind, file, tree."""
    overlays = {overlay.package: overlay for overlay in lock.overlays}
    for package in lock.packages:
        overlay = overlays.get(package.name)
        base = (package.file, package.tree)
        if overlay is None:
            yield package.name, package.version, (("locked", *base),)
        else:
            yield package.name, package.version, (("locked", overlay.file, overlay.tree), ("unpatched", *base))


def _compare(
    row: tuple[str, str, tuple[tuple[str, str, str], ...]],
    by_name: Mapping[str, tuple[str, Installed]],
    venv: Venv,
    shared: Mapping[str, str],
) -> PackageComparison:
    name, version, wheels = row
    there = by_name.get(name)
    if there is None:
        return PackageComparison(package=name, kind="missing", detail=f"the lock has {version}")
    found, where = there
    full = where.dist_info.removesuffix(".dist-info").partition("-")[2]
    cuda = _cuda_of(where, name)
    if found != version.partition("+")[0]:
        return PackageComparison(
            package=name, kind="other version", version=full, detail=f"{full}, the lock has {version}", cuda=cuda
        )
    edited: tuple[str, ...] = ()
    measured, problem = False, ""
    for kind, file, tree in wheels:
        if wheel_key(file) != (name, found):
            continue
        try:
            seen = repack(where, file, venv.minor, None)
        except (OSError, ValueError) as error:
            problem = printable(f"it cannot be read: {error}")[:200]
            continue
        measured, edited = True, seen.edited
        if seen.digest == tree:
            detail = "the locked base wheel, without its patches" if kind == "unpatched" else ""
            return PackageComparison(package=name, kind=kind, version=full, detail=detail, cuda=cuda)
    if not measured:
        return PackageComparison(package=name, kind="edited", version=full, detail=problem, cuda=cuda)
    if edited:
        detail = f"{len(edited)} file{'s' if len(edited) != 1 else ''} edited after it was installed: {edited[0]}"
        return PackageComparison(package=name, kind="edited", version=full, detail=detail, files=edited, cuda=cuda)
    detail = shared.get(name) or f"another build of {full} than the locked one"
    return PackageComparison(package=name, kind="other build", version=full, detail=detail, cuda=cuda)


def _cuda_of(where: Installed, name: str) -> str:
    """The CUDA that a package's `version.py` states; nothing is executed."""
    path = Path(where.site, name.replace("-", "_"), "version.py")
    try:
        with path.open("rb") as file:
            text = file.read(VERSION_FILE_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    match = re.search(r"^cuda(?:\s*:[^=\n]+)?\s*=\s*['\"](\d+(?:\.\d+)*)['\"]", text, re.MULTILINE)
    return match[1] if match else ""


def count_kinds(packages: Sequence[PackageComparison]) -> dict[str, int]:
    """How many packages are of each kind."""
    kinds = ("locked", "unpatched", "edited", "other build", "other version", "missing", "extra")
    return {kind: sum(each.kind == kind for each in packages) for kind in kinds}
