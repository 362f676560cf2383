"""An adoption in words: `adopt-report.md`, the lines of the command line, and the JSON object.

Names and paths come from the venv: in Markdown each stands in a code span that nothing in it can end.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from envspec.adoption.settling import count
from envspec.adoption.spec_text import series_path
from envspec.adoption.values import EXPLAINED
from envspec.printable import printable_json
from envspec.render.markdown import code, prose
from envspec.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from envspec.adoption.values import Adoption, Fate, Kind

SHOWN_PATHS = 50
"""Of one package and reason, in the report; `--json` has all."""

KINDS: Mapping[Kind, str] = {
    "same": "as published, and as the build has it",
    "patched": "as the patches make it",
    "deleted": "not there, and removed by the patches",
    "made": "written by installers and tools, which a build does itself",
    "foreign": "bytes of another published wheel than the pinned one",
    "unexplained": "bytes that nobody publishes here",
    "restored": "not in the venv, but in the build",
}


def shares(fates: Sequence[Fate]) -> tuple[int, int, int, int]:
    """Files explained, files in all, bytes explained, bytes in all; of what the venv has."""
    there = [fate for fate in fates if fate.kind not in ("restored", "deleted")]
    explained = [fate for fate in there if fate.kind in EXPLAINED]
    return len(explained), len(there), sum(fate.size for fate in explained), sum(fate.size for fate in there)


def percent(part: int, whole: int) -> str:
    """A share that says 100 only where all of it is meant.

    Example:
        >>> percent(3, 4), percent(99999, 100000), percent(5, 5), percent(0, 0)
        ('75.00', '99.99', '100', '100')
    """
    if part == whole:
        return "100"
    hundredths = part * 10_000 // whole
    return f"{hundredths // 100}.{hundredths % 100:02}"


def summary_lines(adoption: Adoption) -> list[str]:
    """What the command line says, without the next commands."""
    files, all_files, size, all_size = shares(adoption.fates)
    lines = [
        f"explained  {percent(files, all_files)} % of {counted(all_files, 'file')}, {percent(size, all_size)} % of {all_size:,} bytes",
        f"packages   {len(adoption.pins)} pinned, {counted(len(adoption.overlays), 'overlay')}",
    ]
    lines += [
        f"patch      {overlay.package} {overlay.version}: {counted(len(overlay.files), 'file')}"
        for overlay in adoption.overlays
    ]
    lines += [
        f"conflict   {each.requester} asks for `{each.line}`, {_has(each.name, each.version, each.there)}"
        for each in adoption.conflicts
    ]
    lines += [
        f"lock       {each.message} [{each.check}]{f'; {each.fix}' if each.fix else ''}" for each in adoption.refusals
    ]
    for (package, kind, reason, _), fates in _groups(adoption.fates):
        shown = fates[0].path if len(fates) == 1 else f"{len(fates)} files, {fates[0].path} first"
        lines.append(f"{kind:10} {f'{package}: ' if package else ''}{shown}: {reason}")
    return lines


def next_commands(adoption: Adoption) -> list[str]:
    """What to run in the written folder."""
    return ["envspec lock", f"envspec build --host {adoption.host}" if adoption.host else "envspec build"] + (
        [f"envspec overlay edit {adoption.overlays[0].package}"] if adoption.overlays else []
    )


def report_markdown(adoption: Adoption) -> str:
    """The text of `adopt-report.md`."""
    return "\n".join(_report(adoption)) + "\n"


def _report(adoption: Adoption) -> Iterator[str]:
    files, all_files, size, all_size = shares(adoption.fates)
    where = f" on {code(adoption.host)}" if adoption.host else ""
    yield f"# What {code(adoption.name)} explains of {code(adoption.prefix)}{where}"
    yield ""
    yield (
        f"**{percent(files, all_files)} % of {counted(all_files, 'file')}, {percent(size, all_size)} % of {all_size:,} bytes**. "
        "An environment that is built from the spec has what is explained byte for byte; the rest is below."
    )
    yield ""
    yield "| what | files | bytes | |"
    yield "|---|--:|--:|---|"
    counts = count(adoption.fates)
    for kind, words in KINDS.items():
        if kind in counts:
            yield f"| {kind} | {counts[kind][0]:,} | {counts[kind][1]:,} | {words} |"
    yield ""
    yield "## Next"
    yield ""
    yield "```sh"
    yield from next_commands(adoption)
    yield "```"
    if adoption.refusals:
        yield ""
        yield "## What `envspec lock` will say"
        yield ""
        for refusal in adoption.refusals:
            yield f"- {code(refusal.check)}: {prose(refusal.message)}{f'. {prose(refusal.fix)}' if refusal.fix else ''}"
    if adoption.conflicts:
        yield ""
        yield "## Requirements that the venv does not keep"
        yield ""
        for each in adoption.conflicts:
            yield f"- {prose(each.requester)} asks for {code(each.line)}, {prose(_has(each.name, each.version, each.there))}"
    if adoption.collisions:
        yield ""
        yield "## Paths that several packages have"
        yield ""
        for collision in adoption.collisions[:SHOWN_PATHS]:
            others = ", ".join(name for name in collision.packages if name != collision.owner)
            yield f"- {code(collision.path)}: the venv has the file of {collision.owner}, not that of {others}"
        if len(collisions := adoption.collisions) > SHOWN_PATHS:
            yield f"- and {len(collisions) - SHOWN_PATHS} more, which `--json` has"
    yield from _patches(adoption)
    yield from _rest(adoption)
    yield from _packages(adoption)
    if adoption.notes:
        yield ""
        yield "## Assumed, or not looked at"
        yield ""
        for note in adoption.notes:
            yield f"- {prose(note)}"


def _patches(adoption: Adoption) -> Iterator[str]:
    if not adoption.overlays:
        return
    yield ""
    yield "## Edits, as patches"
    for overlay in adoption.overlays:
        yield ""
        yield f"### {code(f'overlays/{overlay.package}/{overlay.patch_name}')}"
        yield ""
        yield f"On {code(overlay.base_file)}, whose bytes the other files of {overlay.package} have."
        yield ""
        for member, deed in overlay.files:
            yield f"- {deed} {code(member)}"
        for note in overlay.notes:
            yield f"- {prose(note)}"


def _rest(adoption: Adoption) -> Iterator[str]:
    """What is not explained, by package and reason."""
    groups = _groups(adoption.fates)
    if not groups:
        return
    yield ""
    yield "## What the build will not have as the venv has it"
    for (package, kind, reason, advice), fates in groups:
        yield ""
        yield f"### {prose(package) if package else 'no package'}: {counted(len(fates), 'file')}, {kind}"
        yield ""
        yield f"{prose(reason)}."
        if advice:
            yield ""
            yield f"To do: {prose(advice)}."
        yield ""
        for fate in fates[:SHOWN_PATHS]:
            yield f"- {code(fate.path)}"
        if len(fates) > SHOWN_PATHS:
            yield f"- and {len(fates) - SHOWN_PATHS} more, which `--json` has"


def _packages(adoption: Adoption) -> Iterator[str]:
    yield ""
    yield "## Packages"
    yield ""
    yield "| package | in the venv | published wheel | same files |"
    yield "|---|---|---|--:|"
    for each in adoption.attributions:
        stated = each.distribution.version or each.distribution.folder_version or "no version"
        wheel = code(each.wheel.file, in_table=True) if each.wheel is not None else prose(each.reason, in_table=True)
        odd = f" ({prose(each.reason, in_table=True)})" if each.wheel is not None and each.reason else ""
        name = prose(each.distribution.name, in_table=True)
        yield f"| {name} | {prose(stated, in_table=True)}{odd} | {wheel} | {each.same_files} of {each.of_files} |"


def _has(name: str, version: str, there: str) -> str:
    if version:
        return f"the venv has {name} {version}: overridden"
    if there:
        return f"the venv has {name} {there}, which no published wheel explains"
    return f"the venv has no {name}: the lock adds it"


def _groups(fates: Sequence[Fate]) -> list[tuple[tuple[str, str, str, str], list[Fate]]]:
    """Package, kind, reason and advice -> the fates that are not explained; sorted."""
    groups: dict[tuple[str, str, str, str], list[Fate]] = defaultdict(list)
    for fate in fates:
        if fate.kind not in EXPLAINED:
            groups[fate.package, fate.kind, fate.reason, fate.advice].append(fate)
    order = {"foreign": 0, "unexplained": 1, "restored": 2}
    return sorted(groups.items(), key=lambda item: (order.get(item[0][1], 3), item[0]))


def adoption_to_json(adoption: Adoption, *, folder: str, spec: str) -> dict[str, Any]:
    """The JSON object, without its version.

    Args:
        adoption: The adoption.
        folder: Where it was written.
        spec: Name of the spec's file there.
    """
    files, all_files, size, all_size = shares(adoption.fates)
    counts = count(adoption.fates)
    record: dict[str, Any] = {
        "name": adoption.name,
        "prefix": adoption.prefix,
        "host": adoption.host or None,
        "folder": folder,
        "spec": spec,
        "report": "adopt-report.md",
        "explained": {
            "files": files,
            "of_files": all_files,
            "files_percent": percent(files, all_files),
            "bytes": size,
            "of_bytes": all_size,
            "bytes_percent": percent(size, all_size),
        },
        "counts": [
            {"kind": kind, "files": counts[kind][0], "bytes": counts[kind][1]} for kind in KINDS if kind in counts
        ],
        "packages": [
            {
                "package": each.distribution.name,
                "stated": each.distribution.version or None,
                "folder": each.distribution.folder,
                "version": each.wheel.version if each.wheel else None,
                "file": each.wheel.file if each.wheel else None,
                "sha256": each.wheel.sha256 if each.wheel else None,
                "index": each.wheel.index if each.wheel else None,
                "same_files": each.same_files,
                "of_files": each.of_files,
                "reason": each.reason or None,
                "advice": each.advice or None,
            }
            for each in adoption.attributions
        ],
        "overlays": [
            {
                "package": overlay.package,
                "series": series_path(overlay.package),
                "patch": overlay.patch_name,
                "base_file": overlay.base_file,
                "base_sha256": overlay.base_sha256,
                "files": [{"path": member, "deed": deed} for member, deed in overlay.files],
            }
            for overlay in adoption.overlays
        ],
        "conflicts": [
            {
                "requester": each.requester,
                "requirement": each.line,
                "package": each.name,
                "version": each.version or each.there or None,
                "overridden": bool(each.version),
            }
            for each in adoption.conflicts
        ],
        "collisions": [
            {"path": each.path, "owner": each.owner, "packages": list(each.packages)} for each in adoption.collisions
        ],
        "refusals": [
            {"check": each.check, "message": each.message, "fix": each.fix or None} for each in adoption.refusals
        ],
        "local_wheels": list(adoption.local_wheels),
        "paths": [
            {
                "path": fate.path,
                "kind": fate.kind,
                "package": fate.package or None,
                "size": fate.size,
                "reason": fate.reason or None,
                "advice": fate.advice or None,
                "wheel": fate.wheel or None,
            }
            for fate in adoption.fates
            if fate.kind != "same"
        ],
        "next": next_commands(adoption),
        "notes": list(adoption.notes),
    }
    cleaned: dict[str, Any] = printable_json(record)
    return cleaned


def readme_text(adoption: Adoption, package: str) -> str:
    """The README beside a series."""
    overlay = next(each for each in adoption.overlays if each.package == package)
    lines = [
        f"# overlays/{package}",
        "",
        f"Changes of **{overlay.package} {overlay.version}** that a venv had, written by `envspec adopt` as one patch.",
        f"The base is {code(overlay.base_file)}.",
        "",
        "| patch | what it does | drop it when |",
        "|---|---|---|",
        f"| `{overlay.patch_name}` | {counted(len(overlay.files), 'file')}: to be said | to be said |",
        "",
        f"`envspec overlay edit {package}` makes a git work tree of it, in which the patch can be split and described.",
        "",
    ]
    return "\n".join(lines)
