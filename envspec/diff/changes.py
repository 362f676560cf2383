"""What a review says: changes, each of one kind, with a level and with what follows from it.

Texts hold literals between backticks, and nothing in a literal has a backtick (`literal`), so that every way of showing them can tell what we
said from what a lock, a wheel or a patch said. Both may be hostile and are escaped where they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from envspec.wording import printable

Level = Literal["stop", "look", "note"]
"""`stop`: something stops working, or code could come in unseen, unless a person acts. `look`: a person should see it. `note`: the rest."""

LEVELS: tuple[Level, ...] = ("stop", "look", "note")


class Section(Enum):
    """Where in a review a change stands."""

    CONSEQUENCE = "What it does"
    PACKAGE = "Packages"
    CONTENT = "What the wheels put into the environment"
    OVERLAY = "Patches"
    RULING = "Waivers and findings"
    SPEC = "The spec"


class Kind(NamedTuple):
    """What can change."""

    section: Section
    says: str
    """What such a change is, for the page and for `--fail-on`."""


_CONSEQUENCE, _PACKAGE, _CONTENT = Section.CONSEQUENCE, Section.PACKAGE, Section.CONTENT
_OVERLAY, _RULING, _SPEC = Section.OVERLAY, Section.RULING, Section.SPEC

KINDS = {
    "reuploaded": Kind(_CONSEQUENCE, "the same file name has other bytes"),
    "hook-added": Kind(_CONSEQUENCE, "a file runs or is read at every start of Python, and did not before"),
    "hook-changed": Kind(_CONSEQUENCE, "what runs at every start of Python is other code"),
    "record": Kind(_CONSEQUENCE, "the lock says something else of what is the same"),
    "stale": Kind(_CONSEQUENCE, "the lock was made from another spec than the one beside it"),
    "host-lost": Kind(_CONSEQUENCE, "a declared host no longer qualifies"),
    "cuda-line": Kind(_CONSEQUENCE, "the CUDA of the environment"),
    "driver": Kind(_CONSEQUENCE, "the least NVIDIA driver"),
    "gpu-lost": Kind(_CONSEQUENCE, "a GPU generation loses its code"),
    "gpu-jit": Kind(_CONSEQUENCE, "a GPU generation has PTX only, which the driver compiles at first use"),
    "platform": Kind(_CONSEQUENCE, "the platform of the hosts"),
    "python": Kind(_CONSEQUENCE, "the environment's Python"),
    "glibc": Kind(_CONSEQUENCE, "the glibc that hosts must have, as declared or as the binaries need it"),
    "libstdcxx": Kind(_CONSEQUENCE, "the libstdc++ that the binaries need"),
    "host-library": Kind(_CONSEQUENCE, "a library that hosts must offer"),
    "index-moved": Kind(_CONSEQUENCE, "a package comes from another index"),
    "unexplained": Kind(_CONSEQUENCE, "packages changed, and nothing in the spec asks for it"),
    "site": Kind(_CONSEQUENCE, "the same inputs give another tree, or other inputs the same"),
    "host-unsure": Kind(_CONSEQUENCE, "whether a declared host still qualifies is not known"),
    "host-gained": Kind(_CONSEQUENCE, "a declared host qualifies that did not"),
    "host-listed": Kind(_CONSEQUENCE, "a host was added to the spec or removed from it"),
    "cuda-compute": Kind(_CONSEQUENCE, "the compute capabilities that the spec declares"),
    "gpu-gained": Kind(_CONSEQUENCE, "a GPU generation gets code of its own"),
    "hook-removed": Kind(_CONSEQUENCE, "something no longer runs at every start of Python"),
    "name": Kind(_CONSEQUENCE, "the environment's name"),
    "downgraded": Kind(_PACKAGE, "a package goes to an older version"),
    "other-build": Kind(_PACKAGE, "the same version in another wheel: another build tag"),
    "other-wheel": Kind(_PACKAGE, "the same version in another wheel: other tags"),
    "other-tree": Kind(_PACKAGE, "the same wheel is installed as another tree"),
    "added": Kind(_PACKAGE, "a package is new"),
    "removed": Kind(_PACKAGE, "a package is gone"),
    "replaced": Kind(_PACKAGE, "a package is gone, and one for another CUDA stands in its place"),
    "upgraded": Kind(_PACKAGE, "a package goes to a newer version"),
    "requirements": Kind(_PACKAGE, "the same wheel, but what it needs of the others"),
    "owner-changed": Kind(_CONTENT, "a file comes from another package"),
    "script-added": Kind(_CONTENT, "a command in `bin/` is new"),
    "native-added": Kind(_CONTENT, "a package brings native libraries that it did not have"),
    "top-level-added": Kind(_CONTENT, "a name at the root of site-packages that anyone could use is new"),
    "script-removed": Kind(_CONTENT, "a command in `bin/` is gone"),
    "contents-unknown": Kind(_CONTENT, "what some wheels put into the environment was not measured here"),
    "overlay-added": Kind(_OVERLAY, "a package is patched that was not"),
    "overlay-removed": Kind(_OVERLAY, "a package is no longer patched"),
    "base-moved": Kind(_OVERLAY, "a patch series stands on another wheel"),
    "patch-added": Kind(_OVERLAY, "a patch is new"),
    "patch-changed": Kind(_OVERLAY, "a patch says something else"),
    "patch-removed": Kind(_OVERLAY, "a patch is gone"),
    "patch-order": Kind(_OVERLAY, "the same patches in another order"),
    "patched-file": Kind(_OVERLAY, "a file comes out of the patches with other contents"),
    "waiver-added": Kind(_RULING, "a waiver is new"),
    "waiver-changed": Kind(_RULING, "a waiver has another reason or owner"),
    "waiver-unused": Kind(_RULING, "a waiver has come to resolve nothing"),
    "finding-added": Kind(_RULING, "a check finds something that it did not"),
    "waiver-removed": Kind(_RULING, "a waiver is gone"),
    "finding-removed": Kind(_RULING, "a check no longer finds something"),
    "override": Kind(_SPEC, "an override of what packages ask for is new, changed or gone"),
    "spec": Kind(_SPEC, "the spec says something else"),
    "spec-unknown": Kind(_SPEC, "what the spec said is not known"),
}
"""Kind -> what it is. Their order is that of a review, within one level and section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A text that belongs to a change, shown folded: a diff, or lines of code."""

    title: str
    text: str
    language: str = ""
    """`diff`, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that is not as it was."""

    kind: str
    """A key of `KINDS`."""

    level: Level
    subject: str = ""
    """What it is about, if neither package nor host says it: a path, a check."""

    package: str = ""
    """Normalised name; empty if no package is meant."""

    old: str = ""
    new: str = ""
    """Empty where there is none."""

    text: str
    """For a person: one line without a full stop."""

    consequences: tuple[str, ...] = ()
    """What follows from it, and what shows it."""

    requesters: tuple[str, ...] = ()
    """Of a package: who asks for it, now or, if it is gone, before; `[packages]` for the spec itself."""

    heads: tuple[str, ...] = ()
    """Of a package: the nearest packages above it that the spec asks for, or the package itself if it does. Reviews are grouped by them."""

    because: tuple[str, ...] = ()
    """What explains it: keys of the spec such as `packages.torch`, or packages that changed. Empty if nothing does, or if that is not known."""

    excerpts: tuple[Excerpt, ...] = ()

    @property
    def section(self) -> Section:
        """Where it stands in a review."""
        return KINDS[self.kind].section


_KIND_ORDER = {kind: number for number, kind in enumerate(KINDS)}
_KIND_ORDER |= dict.fromkeys(
    ("patch-added", "patch-changed", "patch-removed"), _KIND_ORDER["patch-added"]
)  # a series reads in its order


def in_order(changes: list[Change]) -> tuple[Change, ...]:
    """The changes as a review lists them: the most severe first, consequences before packages before the rest."""
    sections = list(Section)
    return tuple(
        sorted(
            changes,
            key=lambda each: (
                sections.index(each.section),
                LEVELS.index(each.level),
                _KIND_ORDER[each.kind],
                each.package,
                each.subject,
                each.text,
            ),
        )
    )


def literal(text: str) -> str:
    """A text of a lock, wheel, patch or spec as a literal of a message: on one line, in backticks, none inside.

    Example:
        >>> literal("a`b")
        "`a'b`"
    """
    return f"`{printable(text).replace('`', chr(39))}`"


def size_text(size_bytes: int) -> str:
    """A size for a person, decimal.

    Example:
        >>> size_text(3_700_000_000), size_text(15_265)
        ('3.70 GB', '15.3 kB')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.{2 if name == 'GB' else 1}f} {name}"
    return f"{size_bytes} B"
