"""Makes venvs: from wheels of the index by uv, from an environment that envspec built by hard links, or from wheels that are written here.

Files of a venv are hard links, so nothing is ever written through one: `replace` and its like put a new file in the place of the old one.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import os
import re
import shutil
import time
import zipfile
from dataclasses import dataclass, field
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from benchmarks.commands import CannotMeasure
from builder import process

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

PYTHON_MINOR = "3.12"
SITE = f"lib/python{PYTHON_MINOR}/site-packages"


@dataclass(slots=True, kw_only=True)
class Maker:
    """Makes venvs."""

    work: Path
    """Where everything lies."""

    python: Path
    """CPython of `PYTHON_MINOR`."""

    uv: Path
    donor: Path | None = None
    """An environment that envspec built: its packages are linked instead of fetched."""

    wheels: Path | None = None
    """A folder of wheels that are taken before those of the index."""

    pins: Mapping[str, str] = field(default_factory=dict)
    """Name -> version of the committed lock: what is linked from a donor is fetched in these where there is none."""

    _donated: dict[str, _Donated] | None = None

    def venv(self, prefix: Path) -> Path:
        """An empty venv."""
        self._uv("venv", "--quiet", "--python", os.fspath(self.python), os.fspath(prefix))
        return prefix

    def wheel(self, prefix: Path, wheel: Path) -> None:
        """Install a wheel by uv, without what it requires."""
        self._uv(
            "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", "--reinstall", "--no-config",
            "--python", os.fspath(prefix / "bin/python"), os.fspath(wheel),
        )  # fmt: skip
        age(prefix)

    def unzip(self, prefix: Path, wheel: Path) -> None:
        """Unpack a wheel as it is, as some image builders do."""
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(prefix / SITE)
        age(prefix)

    def install(self, prefix: Path, *requirements: str, deps: bool = True, pinned: bool = False) -> None:
        """Install from the index by uv.

        Args:
            prefix: The venv.
            requirements: As uv takes them.
            deps: Whether what they require comes along.
            pinned: Whether the versions are those of `pins`.

        Raises:
            CannotMeasure: uv refuses.
        """
        argv = ["pip", "install", "--quiet", "--python", os.fspath(prefix / "bin/python"), *requirements]
        if self.wheels is not None:
            argv += ["--find-links", os.fspath(self.wheels)]
        if not deps:
            argv.append("--no-deps")
        if pinned:
            constraints = self.work / "constraints.txt"
            constraints.write_text("".join(f"{name}=={version}\n" for name, version in self.pins.items()), "utf-8")
            argv += ["--constraints", os.fspath(constraints)]
        self._uv(*argv)
        age(prefix)

    def link(self, prefix: Path, *names: str, deps: bool = True, but: Iterable[str] = ()) -> None:
        """Take packages of the donor by hard links; from the index where there is no donor.

        Args:
            prefix: The venv.
            names: Of packages.
            deps: Whether what they require comes along.
            but: Packages that are left out.

        Raises:
            CannotMeasure: The donor has no such package.
        """
        if self.donor is None:
            self.install(prefix, *names, deps=deps, pinned=True)
            return
        donated = self._donations()
        pending, chosen = [(name, frozenset[str]()) for name in names], dict[str, frozenset[str]]()
        while pending:
            name, extras = pending.pop()
            if name in but or (name in chosen and extras <= chosen[name]):
                continue
            if name not in donated:
                if name in names:
                    raise CannotMeasure(f"the donor has no `{name}`")
                continue
            chosen[name] = extras | chosen.get(name, frozenset())
            if deps:
                pending += donated[name].needs(chosen[name])
        for name in chosen:
            self._link(self.donor, prefix, donated[name])

    def names(self) -> tuple[str, ...]:
        """All packages of the donor."""
        return tuple(self._donations())

    def _donations(self) -> dict[str, _Donated]:
        if self._donated is None:
            folders = () if self.donor is None else sorted((self.donor / SITE).glob("*.dist-info"))
            found = [_Donated.read(folder) for folder in folders]
            self._donated = {each.name: each for each in found}
        return self._donated

    @staticmethod
    def _link(donor: Path, prefix: Path, donated: _Donated) -> None:
        for path in donated.files:
            source, target = donor / SITE / path, prefix / SITE / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.link(os.path.realpath(source.parent) + "/" + source.name, target)

    def _uv(self, *arguments: str) -> None:
        environ = {**os.environ, "UV_CACHE_DIR": os.fspath(self.work / "uv-cache"), "UV_LINK_MODE": "hardlink"}
        environ.pop("VIRTUAL_ENV", None)
        done = process.run([os.fspath(self.uv), *arguments], env=environ, cwd=self.work, timeout_s=1800)
        if done.returncode != 0:
            raise CannotMeasure(f"uv {arguments[0]} {arguments[1]}: {done.stderr.strip()[-400:]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Donated:
    name: str
    requires: tuple[Requirement, ...]
    files: tuple[str, ...]
    """Relative to site-packages."""

    @classmethod
    def read(cls, folder: Path) -> _Donated:
        metadata = HeaderParser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))
        with (folder / "RECORD").open(encoding="utf-8", newline="") as file:
            rows = [row[0] for row in csv.reader(file) if row]
        return cls(
            name=re.sub(r"[-_.]+", "-", str(metadata["Name"])).lower(),
            requires=tuple(Requirement(each) for each in metadata.get_all("Requires-Dist") or ()),
            files=tuple(row for row in rows if not row.endswith(".pyc") and (folder.parent / row).is_file()),
        )

    def needs(self, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
        environments = [{"extra": extra} for extra in (*extras, "")]
        return [
            (re.sub(r"[-_.]+", "-", each.name).lower(), frozenset(each.extras))
            for each in self.requires
            if each.marker is None or any(each.marker.evaluate({**_TARGET, **extra}) for extra in environments)
        ]


_TARGET = {"python_version": PYTHON_MINOR, "python_full_version": f"{PYTHON_MINOR}.1"}


def age(prefix: Path) -> None:
    """Let what was just installed have been installed yesterday: who edits something does so later."""
    day_ns = 86_400 * 10**9
    fresh = time.time_ns() - day_ns // 24
    for folder, _, files in os.walk(prefix / SITE):
        for name in files:
            path = os.path.join(folder, name)  # noqa: PTH118 - there are thousands
            then = os.lstat(path).st_mtime_ns
            if then > fresh:
                os.utime(path, ns=(then - day_ns, then - day_ns), follow_symlinks=False)


def site(prefix: Path) -> Path:
    """Where a venv has its packages."""
    return prefix / SITE


def replace(path: Path, content: bytes | str) -> None:
    """Put a file in the place of another, whose other names keep what they have."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    if path.exists():
        new.chmod(path.stat().st_mode | 0o600)
    new.replace(path)


def edit(path: Path, old: str, new: str) -> None:
    """Change a text file.

    Raises:
        CannotMeasure: The text is not in it.
    """
    text = path.read_text(encoding="utf-8")
    if old not in text:
        raise CannotMeasure(f"{path.name} has no {old!r}")
    replace(path, text.replace(old, new, 1))


def remove(path: Path) -> None:
    """Remove a file or a tree."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def uninstall(prefix: Path, name: str) -> None:
    """Remove a package with its metadata."""
    (folder,) = site(prefix).glob(f"{name.replace('-', '_')}-*.dist-info")
    with (folder / "RECORD").open(encoding="utf-8", newline="") as file:
        rows = [row[0] for row in csv.reader(file) if row]
    for row in rows:
        (site(prefix) / row).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def record(prefix: Path, dist_info: str) -> None:
    """Write the RECORD of a package anew, with what is there: as if it had been installed so."""
    folder = site(prefix) / dist_info
    with (folder / "RECORD").open(encoding="utf-8", newline="") as file:
        rows = [row[0] for row in csv.reader(file) if row]
    lines = []
    for row in rows:
        path = site(prefix) / row
        if row.endswith("/RECORD") or not path.is_file():
            lines.append(f"{row},,")
        else:
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
            lines.append(f"{row},sha256={digest},{path.stat().st_size}")
    replace(folder / "RECORD", "\n".join(lines) + "\n")
