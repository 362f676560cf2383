"""`envspec diff`: what does a change of the lock do?"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from envspec.cli.options import JsonOption, SpecOption, StoreOption, check_path, find_spec, store_root
from envspec.cli.output import say_in_utf8, say_json, tell
from envspec.errors import FOUND_WRONG, EnvspecError

if TYPE_CHECKING:
    from builder.review_inputs import Source
    from envspec.diff.review import Review
    from envspec.diff.sides import Side

WORKING_TREE = "the working tree"

_COLOURS = {
    "plain": "",
    "title": "\x1b[1m",
    "stop": "\x1b[31;1m",
    "look": "\x1b[33;1m",
    "note": "\x1b[2m",
    "dim": "\x1b[2m",
    "plus": "\x1b[32m",
    "minus": "\x1b[31m",
}


def diff(
    old: Annotated[
        str | None, Parameter(help="A lock: a file, or a git revision. Default: HEAD. `A..B` and `A...B` name two.")
    ] = None,
    new: Annotated[str | None, Parameter(help="The other one. Default: the working tree.")] = None,
    /,
    *,
    exit_code: Annotated[
        bool, Parameter(name="--exit-code", negative=(), help="Exit 1 if anything changed, as git does.")
    ] = False,
    fail_on: Annotated[
        tuple[str, ...],
        Parameter(
            name="--fail-on",
            negative=(),
            help="Exit 1 if there is a change of this kind or level, such as `driver` or `stop`. Repeatable.",
        ),
    ] = (),
    output: Annotated[
        Literal["text", "markdown", "json", "html"],
        Parameter(name="--format", help="How to print it; `markdown` fits into a comment of a pull request."),
    ] = "text",
    html: Annotated[
        bool, Parameter(name="--html", negative=(), help="Print one page of HTML that needs nothing else.")
    ] = False,
    patches: Annotated[
        bool, Parameter(name="--patches", negative=(), help="Show the diffs of patches and patched files, too.")
    ] = False,
    spec: SpecOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what a change of the lock does: to hosts, GPUs and drivers first, then to packages, patches and waivers.

    Nothing is fetched or executed. What only the wheels can tell is said where they were measured in this store.
    """
    shape = _shape(output, html=html, as_json=as_json)
    _check_kinds(fail_on)
    places = _places(old, new)
    from envspec.diff.review import make_review  # noqa: PLC0415

    sources, lock_file, spec_file = _sources(places, spec)
    before, after = (
        _side(source, lock_file if source_lock is None else source_lock, spec_file if source_lock is None else None)
        for source, source_lock in sources
    )
    if after.lock is None:
        raise EnvspecError(
            f"there is no lock in {after.label}", input_name=lock_file, hint="make one with `envspec lock`"
        )
    before, after = _filled(before, after, [source for source, _ in sources], store)
    review = make_review(before, after, lock_name=lock_file)
    _show(review, shape, patches=patches)
    return _code(review, exit_code=exit_code, fail_on=fail_on)


def _shape(output: str, *, html: bool, as_json: bool) -> str:
    asked = {"json"} if as_json else set()
    asked |= {"html"} if html else set()
    asked |= {output} if output != "text" else set()
    if len(asked) > 1:
        raise EnvspecError(
            f"asked for {' and '.join(sorted(asked))}, but one thing is printed", hint="give one of them"
        )
    return next(iter(asked), "text")


def _check_kinds(fail_on: tuple[str, ...]) -> None:
    if not fail_on:
        return
    from envspec.diff.changes import KINDS, LEVELS  # noqa: PLC0415

    known = [*LEVELS, *KINDS]
    unknown = [kind for kind in fail_on if kind not in known]
    if unknown:
        import difflib  # noqa: PLC0415

        near = difflib.get_close_matches(unknown[0], known, n=1)
        raise EnvspecError(
            f"`{unknown[0]}` is no kind or level of change",
            input_name="--fail-on",
            hint=f"did you mean `{near[0]}`?" if near else f"kinds are {', '.join(known)}",
        )


def _places(old: str | None, new: str | None) -> tuple[str, str | None]:
    """The two sides as they are written; None is the working tree."""
    if old is None:
        return "HEAD", None
    if new is None and ".." in old and not Path(old).exists():
        base, dots, tip = old.partition("...")
        if dots:
            return old, tip or "HEAD"
        base, _, tip = old.partition("..")
        return base or "HEAD", tip or "HEAD"
    return old, new


def _sources(places: tuple[str, str | None], spec: Path | None) -> tuple[list[tuple[Source, str | None]], str, str]:
    """Where both sides lie, each with the name of its lock if that is a file of its own; and the names of lock and spec elsewhere."""
    from builder.review_inputs import Folder, open_revision  # noqa: PLC0415

    files = [_as_file(place) if place is not None else None for place in places]
    lock_file, spec_file, folder = "", "", Path()
    if not all(files):
        path = spec if spec is not None else find_spec(Path())
        check_path(path, "the spec")
        folder = Path(os.path.abspath(path)).parent.resolve()  # noqa: PTH100 - the name of the spec stays as it is
        lock_file, spec_file = path.with_suffix(".lock").name, path.name
    found: list[tuple[Source, str | None]] = []
    for place, file in zip(places, files, strict=True):
        if place is None:
            found.append((Folder(path=folder, label=WORKING_TREE), None))
        elif file is not None:
            found.append((Folder(path=file.parent, label=os.fspath(file)), file.name))
        else:
            found.append((open_revision(place, folder, os.environ), None))
    return found, lock_file or str(found[1][1]), spec_file


def _as_file(place: str) -> Path | None:
    """The file that is meant, if it is one: what lies there, or looks like a path of a lock."""
    path = Path(place)
    if path.is_file() or place == os.devnull:  # git gives the null device for a file that is not there
        check_path(path, "the lock")
        return path
    if place.endswith(".lock") and not place.startswith("-"):
        raise EnvspecError(f"there is no file `{place}`", hint="a lock is given by its path, a revision by its name")
    return None


def _side(source: Source, lock_file: str, spec_file: str | None) -> Side:
    """A side with its lock and, if it can be read, its spec."""
    from envspec.diff.sides import Side  # noqa: PLC0415
    from envspec.lock_toml import parse_lock  # noqa: PLC0415
    from envspec.spec_toml import parse_spec  # noqa: PLC0415

    beside = spec_file or os.fspath(Path(lock_file).with_suffix(".toml"))
    lock_bytes, spec_bytes = source.read([lock_file, beside])
    name = f"{lock_file}, {source.label}" if source.label != lock_file else lock_file
    lock = None if lock_bytes is None else parse_lock(_decoded(lock_bytes, name), input_name=name)
    spec, problem = None, ""
    if spec_bytes is not None:
        try:
            spec = parse_spec(_decoded(spec_bytes, beside), input_name=beside)
        except EnvspecError as error:
            problem = f"`{beside}` cannot be read: {error.message}"
    return Side(label=source.label, lock=lock, spec=spec, spec_problem=problem)


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EnvspecError(f"byte {error.start} is not UTF-8", input_name=name, hint="is this a lock?") from error


def _filled(before: Side, after: Side, sources: list[Source], store: Path | None) -> tuple[Side, Side]:
    """Both sides with the patches, files and facts that are at hand."""
    from builder.review_inputs import read_all_contents, read_patches  # noqa: PLC0415
    from envspec.diff.pairs import changed_pairs  # noqa: PLC0415

    root = store_root(store)
    if before.overlays != after.overlays:
        moved = [
            [overlay for package, overlay in side.overlays.items() if other.overlays.get(package) != overlay]
            for side, other in ((before, after), (after, before))
        ]
        before = replace(before, patches=read_patches(sources[0], moved[0]))
        after = replace(after, patches=read_patches(sources[1], moved[1]))
        if (root / "wheels").is_dir():
            from builder.agent.store import Store  # noqa: PLC0415
            from builder.review_members import read_members  # noqa: PLC0415

            members = read_members(Store(root), before, after), read_members(Store(root), after, before)
            before, after = replace(before, members=members[0]), replace(after, members=members[1])
    pairs = changed_pairs(before, after)
    contents = read_all_contents(root / "facts", pairs, before, after)
    return replace(before, contents=contents[0]), replace(after, contents=contents[1])


def _show(review: Review, shape: str, *, patches: bool) -> None:
    if shape != "text":
        say_in_utf8()
    if shape == "json":
        from envspec.render.record import review_record  # noqa: PLC0415

        say_json(review_record(review))
    elif shape == "markdown":
        from envspec.render.markdown import review_markdown  # noqa: PLC0415

        sys.stdout.write(review_markdown(review))
    elif shape == "html":
        from envspec.render.page import review_page  # noqa: PLC0415

        sys.stdout.write(review_page(review))
    else:
        from envspec.render.terminal import review_lines  # noqa: PLC0415

        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        width = min(shutil.get_terminal_size((100, 24)).columns, 140)
        for line in review_lines(review, width=width, excerpts=patches):
            text = "".join(
                f"{_COLOURS[span.style]}{span.text}\x1b[0m" if coloured and _COLOURS[span.style] else span.text
                for span in line
            )
            sys.stdout.write(text.rstrip() + "\n")


def _code(review: Review, *, exit_code: bool, fail_on: tuple[str, ...]) -> int:
    hit = [change for change in review.changes if change.kind in fail_on or change.level in fail_on]
    for kind in fail_on:
        count = sum(kind in (change.kind, change.level) for change in hit)
        if count:
            tell(f"fails on `{kind}`: {count} {'changes' if count != 1 else 'change'}")
    changed = review.old is None or review.old != review.new or bool(review.changes)
    return FOUND_WRONG if hit or (exit_code and changed) else 0
