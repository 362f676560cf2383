"""What the wheels put into the environment: commands, native libraries, names that anyone could use, files with another owner.

The lock does not list files; the store's facts of a wheel do. Where they are not here, that is said, and nothing is guessed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from envspec.diff.changes import Change, literal
from envspec.generic_names import GENERIC_NAMES
from envspec.wording import counted, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from envspec.diff.pairs import Pair
    from envspec.diff.sides import Side, WheelContents

_SITE_PACKAGES = re.compile(r"lib/python3\.[0-9]+/site-packages/")
_NATIVE = re.compile(r"\.so(?:\.[0-9]+)*$")
_SHOWN = 6
_SHOWN_UNKNOWN = 12


class _Both(NamedTuple):
    """A changed package whose contents are known as far as it is there."""

    pair: Pair
    old: WheelContents | None
    """None if the package was not there."""

    new: WheelContents | None


def changes_of_contents(pairs: Sequence[Pair], old: Side, new: Side) -> list[Change]:
    """What the changed wheels put into the environment that was not there, and what is not known of that.

    Args:
        pairs: The packages that changed.
        old: The old side.
        new: The new side.
    """
    known: list[_Both] = []
    unknown: list[str] = []
    for pair in pairs:
        before = old.parts[pair.old.name] if pair.old else None
        after = new.parts[pair.new.name] if pair.new else None
        if before and after and before.sha256 == after.sha256:
            continue
        contents = [side.contents.get(part.sha256) if part else None for side, part in ((old, before), (new, after))]
        if any(part and not content for part, content in zip((before, after), contents, strict=True)):
            unknown.append(pair.name)
        else:
            known.append(_Both(pair, contents[0], contents[1]))
    commands = frozenset(script for both in known if both.old for script in both.old.scripts)
    found = [change for both in known for change in _of_wheel(both, commands)]
    found += _scripts_gone(known)
    found += _owners(known)
    if unknown:
        found.append(_unknown(unknown))
    return found


def _of_wheel(both: _Both, commands: frozenset[str]) -> list[Change]:
    """What a wheel brings; `commands` were there before, of whichever package: one that moved is told as a file with another owner."""
    found: list[Change] = []
    if both.new is None:
        return found
    name = both.pair.name
    label = f"{name} {both.pair.new.version}" if both.pair.new else name
    scripts = sorted(set(both.new.scripts) - commands)
    if scripts:
        found.append(
            Change(
                kind="script-added",
                level="look",
                package=name,
                new=", ".join(scripts[:_SHOWN]),
                text=f"{label} puts {counted(len(scripts), 'new command')} into `bin/`: {_examples(scripts)}",
            )
        )
    had, has = _natives(both.old), _natives(both.new)
    come = sorted(has - had)
    if come and both.old is not None and both.pair.names == (name,):
        found.append(
            Change(
                kind="native-added",
                level="note" if had else "look",
                package=name,
                new=str(len(come)),
                text=f"{label} has {counted(len(come), 'native library', 'native libraries')} "
                f"{'that it did not have' if had else 'and had none before'}: {_examples(come)}",
                consequences=() if had else ("it runs native code now, where it was Python alone",),
            )
        )
    elif come and both.old is None:
        found.append(
            Change(
                kind="native-added",
                level="note",
                package=name,
                new=str(len(come)),
                text=f"{label} brings {counted(len(come), 'native library', 'native libraries')}: {_examples(come)}",
            )
        )
    own = name.replace("-", "_")
    tops = sorted(
        top
        for top in _tops(both.new) - _tops(both.old)
        if top.lower() in GENERIC_NAMES and top.lower() not in (own, f"{own}.py")
    )
    if tops:
        found.append(
            Change(
                kind="top-level-added",
                level="look",
                package=name,
                new=", ".join(tops[:_SHOWN]),
                text=f"{label} puts {counted(len(tops), 'name')} at the root of site-packages that anyone could use: "
                f"{_examples(tops)}",
                consequences=("`import` of that name may find this one from now on",),
            )
        )
    return found


def _scripts_gone(known: Iterable[_Both]) -> list[Change]:
    there = {script for both in known for script in (both.new.scripts if both.new else ())}
    found = []
    for both in known:
        gone = sorted({*(both.old.scripts if both.old else ())} - there)
        if gone:
            found.append(
                Change(
                    kind="script-removed",
                    level="note",
                    package=both.pair.name,
                    old=", ".join(gone[:_SHOWN]),
                    text=f"{counted(len(gone), 'command')} of {both.pair.name} in `bin/` {'is' if len(gone) == 1 else 'are'} gone: "
                    f"{_examples(gone)}",
                )
            )
    return found


def _owners(known: Sequence[_Both]) -> list[Change]:
    """Files that were of some packages and are of others now, by the packages."""
    before = _by_path(known, is_new=False)
    after = _by_path(known, is_new=True)
    moved: dict[tuple[int, int], list[str]] = {}
    for path in before.keys() & after.keys():
        one, other = before[path], after[path]
        if not one.keys() & other.keys():
            moved.setdefault((min(one), min(other)), []).append(path)
    found = []
    for (one_number, other_number), paths in sorted(moved.items()):
        first, second = known[one_number].pair, known[other_number].pair
        paths.sort()
        differ = [path for path in paths if before[path][one_number] != after[path][other_number]]
        shown = [_shown(path) for path in (differ or paths)]
        was = first.old.name if first.old else first.name
        found.append(
            Change(
                kind="owner-changed",
                level="look",
                package=second.name,
                subject=was,
                old=was,
                new=second.name,
                text=f"{counted(len(paths), 'file')} of {was} {'comes' if len(paths) == 1 else 'come'} from {second.name} now"
                f": {_examples(shown)}",
                consequences=(
                    f"{counted(len(differ), 'file')} with other contents" if differ else "with the same contents",
                ),
            )
        )
    return found


def _by_path(known: Sequence[_Both], *, is_new: bool) -> dict[str, dict[int, str]]:
    """Path without the version of Python -> the packages that have it, by their number, with the sha256; metadata is left out."""
    found: dict[str, dict[int, str]] = {}
    for number, both in enumerate(known):
        contents = both.new if is_new else both.old
        for path, (sha256, _) in (contents.files if contents else {}).items():
            if ".dist-info/" not in path:
                found.setdefault(_SITE_PACKAGES.sub("@/", path, count=1), {})[number] = sha256
    return found


def _natives(contents: WheelContents | None) -> frozenset[str]:
    files: Mapping[str, object] = contents.files if contents else {}
    return frozenset(_SITE_PACKAGES.sub("", path, count=1) for path in files if _NATIVE.search(path))


def _tops(contents: WheelContents | None) -> frozenset[str]:
    found = set()
    for path in contents.files if contents else ():
        site = _SITE_PACKAGES.match(path)
        if site:
            found.add(path[site.end() :].split("/", 1)[0])
    return frozenset(found)


def _shown(path: str) -> str:
    return path.removeprefix("@/")


def _examples(paths: Sequence[str]) -> str:
    words = [literal(path) for path in paths[:_SHOWN]]
    if len(paths) > _SHOWN:
        words.append(f"{len(paths) - _SHOWN} more")
    return joined(words)


def _unknown(names: Sequence[str]) -> Change:
    more = len(names) - _SHOWN_UNKNOWN
    listed = ", ".join(names[:_SHOWN_UNKNOWN]) + (f" and {more} more" if more > 0 else "")
    return Change(
        kind="contents-unknown",
        level="note",
        text=f"not known: new commands, native libraries and owners of files in {counted(len(names), 'package')}, "
        "whose facts are not in this store",
        consequences=(listed, "`envspec check` fetches and measures the wheels of a lock; run it, then review again"),
    )
