"""A patch series, its base wheel, and work in its git work tree, without a command line, a lock or an index.

    made = make_overlay(tmp_path, {"demo/one.py": "x = 1\n"}, patches)
    edit(made.task)
    made.write("demo/one.py", "x = 2\n")
    made.git("commit", "-qam", "be two")
    save(made.task)
    made.series_files()

`git` is a user's git: it has a configuration that would change what is committed, wherever it had a say (`HOSTILE_CONFIG`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.git import find_git
from builder.overlay_editing import OverlayTask
from builder.overlay_rebase import TargetWheel
from envspec.lock import LockedPackage
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

HOSTILE_CONFIG = """
[user]
	useConfigOnly = true
[commit]
	gpgSign = true
	template = /nonexistent
	cleanup = strip
[tag]
	gpgSign = true
[gpg]
	program = /bin/false
[core]
	autocrlf = true
	hooksPath = {hooks}
	attributesFile = {attributes}
	excludesFile = {excludes}
	quotePath = true
	abbrev = 40
[filter "shout"]
	clean = tr a-z A-Z
	smudge = tr a-z A-Z
[diff]
	noprefix = true
	algorithm = histogram
	context = 0
	orderFile = {excludes}
	renames = copies
[merge]
	conflictStyle = zdiff3
	renames = false
[rebase]
	autoSquash = true
	autoStash = true
	updateRefs = true
[i18n]
	commitEncoding = ISO-8859-1
[init]
	templateDir = {templates}
	defaultObjectFormat = sha256
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeOverlay:
    """See the module's docstring."""

    task: OverlayTask
    home: Path
    wheels: dict[str, Path]
    """sha256 -> wheel file: the wheelhouse."""

    @property
    def tree(self) -> Path:
        """The work tree."""
        return self.task.folder

    @property
    def series(self) -> Path:
        """The series file."""
        return self.task.series_file

    def environ(self) -> dict[str, str]:
        """Of a user with a hostile configuration of git."""
        kept = {name: os.environ[name] for name in ("PATH",)}
        return {**kept, "HOME": str(self.home), "LANG": "C.UTF-8", "GIT_AUTHOR_NAME": "Jane Doe", "EDITOR": "true"}

    def git(self, *arguments: str, check: bool = True) -> str:
        """Run git in the work tree, as its user does."""
        done = subprocess.run(
            ["/usr/bin/env", "git", *arguments],
            cwd=self.tree,
            env=self.environ(),
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file of the work tree."""
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def commit(self, message: str, files: Mapping[str, str | bytes | None]) -> None:
        """Change files and commit them; None removes one."""
        for path, content in files.items():
            if content is None:
                (self.tree / path).unlink()
            else:
                self.write(path, content)
        self.git("add", "-A")
        self.git("commit", "-qm", message)

    def series_files(self) -> dict[str, bytes]:
        """Every file of the series' folder."""
        return {path.name: path.read_bytes() for path in sorted(self.series.parent.iterdir())}

    def names(self) -> list[str]:
        """What the series file lists."""
        return [line for line in self.series.read_text().splitlines() if line and not line.startswith("#")]

    def patch(self, name: str) -> str:
        """A patch of the series."""
        return (self.series.parent / name).read_text()

    def add_version(self, version: str, files: Mapping[str, bytes | str], **more: object) -> TargetWheel:
        """Put the wheel of another version into the wheelhouse."""
        wheel = make_wheel(self.home.parent / "wheels", "demo", version, files, **more)  # type: ignore[arg-type]
        self.wheels[sha256_of(wheel)] = wheel
        return TargetWheel(version=version, file=wheel.name, path=wheel)

    def locked_to(self, target: TargetWheel) -> MadeOverlay:
        """The same with a lock that has another base wheel."""
        package = package_of(target.path, target.version)
        return replace(self, task=replace(self.task, package=package, base_wheel=lambda: target.path))


def make_overlay(
    folder: Path,
    base: Mapping[str, bytes | str],
    patches: Mapping[str, bytes | str] | None = None,
    *,
    comment: str = "",
    executable: Sequence[str] = (),
    work_tree: str = "tree",
) -> MadeOverlay:
    """A series and its base wheel `demo` 1.0.

    Args:
        folder: Where all of it lies.
        base: Files of the base wheel.
        patches: Name -> content, in the series' order; None for no series file at all.
        comment: First line of the series file.
        executable: Files of the base wheel with mode 0755.
        work_tree: Name of the work tree's folder.
    """
    home = folder / "home"
    for name in ("hooks", "templates/hooks"):
        (home / name).mkdir(parents=True)
        for hook in ("pre-commit", "commit-msg", "post-checkout", "post-rewrite", "pre-rebase"):
            (home / name / hook).write_text("#!/bin/sh\nexit 1\n")
            (home / name / hook).chmod(0o755)
    (home / "attributes").write_text("* text=auto eol=crlf filter=shout ident\n")
    (home / "excludes").write_text("*.txt\nnew*\n")
    places = {name: home / name for name in ("hooks", "attributes", "excludes", "templates")}
    (home / ".gitconfig").write_text(HOSTILE_CONFIG.format(**places))
    wheel = make_wheel(folder / "wheels", "demo", "1.0", base, executable=executable)
    series = folder / "overlays" / "demo" / "series"
    if patches is not None:
        series.parent.mkdir(parents=True)
        series.write_text(comment + "".join(f"{name}\n" for name in patches))
        for name, content in patches.items():
            (series.parent / name).write_bytes(content.encode() if isinstance(content, str) else content)
    wheels = {sha256_of(wheel): wheel}
    task = OverlayTask(
        package=package_of(wheel, "1.0"),
        series="overlays/demo/series",
        series_file=series,
        folder=folder / work_tree,
        git=find_git(os.environ),
        base_wheel=lambda: wheel,
        find_wheel=wheels.get,
    )
    return MadeOverlay(task=task, home=home, wheels=wheels)


def copy_overlay(made: MadeOverlay, folder: Path) -> MadeOverlay:
    """The same in another folder: quicker than making it again."""
    origin = made.home.parent
    shutil.copytree(origin, folder, symlinks=True, dirs_exist_ok=True)
    wheels = {sha256: folder / wheel.relative_to(origin) for sha256, wheel in made.wheels.items()}
    (wheel,) = wheels.values()
    task = replace(
        made.task,
        series_file=folder / made.series.relative_to(origin),
        folder=folder / made.tree.relative_to(origin),
        base_wheel=lambda: wheel,
        find_wheel=wheels.get,
    )
    return MadeOverlay(task=task, home=folder / "home", wheels=wheels)


def package_of(wheel: Path, version: str) -> LockedPackage:
    """A wheel as a lock has it."""
    return LockedPackage(
        name="demo",
        version=version,
        index="default",
        file=wheel.name,
        size=wheel.stat().st_size,
        sha256=sha256_of(wheel),
        tree="0" * 64,
    )


def sha256_of(wheel: Path) -> str:
    """Of a file."""
    return hashlib.sha256(wheel.read_bytes()).hexdigest()
