"""What a case is: how a venv is made and broken, and which cause has to be named first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.diagnose.making import Maker

Kind = Literal["recipe", "wheels"]
"""Small wheels that are written here, or real ones from the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A venv that is broken."""

    prefix: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user has."""

    cwd: Path | None = None
    """Where the user stands; None for an empty folder."""

    library: str = ""
    """The library that fails to load, relative to site-packages: `ldd` is asked about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case."""

    id: str
    """`C03` of the list of public reports; `N..` of further ones."""

    title: str
    kind: Kind
    checks: frozenset[str]
    """Ids of which the first cause has to have one; empty for a healthy venv: no cause of severity `error`."""

    packages: frozenset[str]
    """Of which the first package of the first cause has to be one; empty if it is about no package."""

    build: Callable[[Maker, Path], Built]
    run: str = ""
    """Module whose import is traced, or script in the folder where the user stands; empty for none."""

    second: tuple[frozenset[str], frozenset[str]] | None = None
    """Checks and packages that a further cause has to have."""

    not_causes: frozenset[str] = frozenset()
    """Packages that have to be declared innocent."""

    remark: str = ""
    """What a remark has to hold, where the finding is no cause."""

    fails: bool = True
    """Whether the run fails."""

    @property
    def hangs(self) -> bool:
        """Whether the run has to be stopped: it gets little time."""
        return self.id == "N14"

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.checks and not self.remark


def ids(*names: str) -> frozenset[str]:
    """A set of names."""
    return frozenset(names)


def recipe(
    name: str,
    title: str,
    checks: str,
    packages: str,
    build: Callable[[Maker, Path], Built],
    *,
    run: str = "",
    fails: bool = True,
    innocent: str = "",
    remark: str = "",
    kind: Kind = "recipe",
) -> Case:
    """A case in one line; names are parted by blanks, and `-` stands for no package.

    Args:
        name: Its id.
        title: What is wrong.
        checks: Ids of which the first cause has to have one.
        packages: Of which one has to be the first.
        build: Makes it.
        run: Module whose import is traced.
        fails: Whether that fails.
        innocent: Packages that have to be declared so.
        remark: What a remark, or a cause, has to hold.
        kind: Of the wheels.
    """
    return Case(
        id=name,
        title=title,
        kind=kind,
        checks=frozenset(checks.split()),
        packages=frozenset("" if each == "-" else each for each in packages.split()),
        build=build,
        run=run,
        fails=fails,
        not_causes=frozenset(innocent.split()),
        remark=remark,
    )


def real(
    name: str,
    title: str,
    checks: str,
    packages: str,
    build: Callable[[Maker, Path], Built],
    *,
    run: str = "",
    fails: bool = True,
    innocent: str = "",
    remark: str = "",
) -> Case:
    """A case with wheels of the index; otherwise as `recipe`."""
    more = {"run": run, "innocent": innocent, "remark": remark}
    return recipe(name, title, checks, packages, build, fails=fails, kind="wheels", **more)
