"""Small wheels for tests, honest or hostile, written byte for byte the same every time.

    path = make_wheel(tmp_path, "demo", "1.0", {"demo/__init__.py": "x = 1\n"}, requires=["numpy>=2"])

Without further arguments a wheel is valid: METADATA, WHEEL and RECORD are right, and RECORD lists every member. Each
argument then bends one thing. A path in `files` is a member's name (below site-packages), one in `data` lies below
`<name>-<version>.data/`.
"""

from __future__ import annotations

import base64
import hashlib
import re
import stat
import warnings
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

OLDEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes | str] | None = None,
    *,
    tag: str = "py3-none-any",
    build: str = "",
    requires: Sequence[str] = (),
    requires_python: str = "",
    extras: Sequence[str] = (),
    entry_points: str = "",
    data: Mapping[str, bytes | str] | None = None,
    executable: Collection[str] = (),
    metadata_version: str | None = None,
    metadata_name: str | None = None,
    wheel_tags: Sequence[str] | None = None,
    record: Mapping[str, str | None] | None = None,
    record_extra: Sequence[str] = (),
    symlinks: Mapping[str, str] | None = None,
    raw_members: Sequence[tuple[str, bytes]] = (),
    compression: int = zipfile.ZIP_DEFLATED,
    dist_info_name: str | None = None,
) -> Path:
    r"""Write a wheel and return its path.

    Args:
        directory: Where the file goes; made if it is missing.
        name: As METADATA has it; the file name has it in lower case with `_`.
        version: As the file name and METADATA have it.
        files: Member -> content; None stands for one module `<name>/__init__.py`, an empty mapping for no files at all.
        tag: Of the file name; may be a compressed set such as `cp311.cp312-abi3-manylinux_2_28_x86_64`.
        build: Build tag of the file name: `1`.
        requires: `Requires-Dist` lines.
        requires_python: `Requires-Python`; left out if empty.
        extras: `Provides-Extra` lines.
        entry_points: Whole text of entry_points.txt; no such file if empty.
        data: Path below `<name>-<version>.data/` -> content: `scripts/tool`, `data/share/x`, `purelib/x.py`.
        executable: Paths of `files` or `data` that get mode 0755 instead of 0644.
        metadata_version: `Version` in METADATA, if it is to differ from the file name.
        metadata_name: `Name` in METADATA, likewise.
        wheel_tags: `Tag` lines of WHEEL; None stands for the expanded `tag`.
        record: Member -> the whole row of RECORD to write in place of the right one; None leaves the row out.
        record_extra: Rows to add to RECORD: of members that do not exist.
        symlinks: Member -> target, written as links; RECORD lists them by the digest of the target's text.
        raw_members: Names and contents added verbatim at the end, without a row in RECORD: `../x`, `/x`, a name that
            is there already.
        compression: Of `zipfile`.
        dist_info_name: Name of the dist-info folder without `.dist-info`, if it is to differ from the file name.

    Example:
        >>> make_wheel(tmp_path, "Demo.Pkg", "1.0").name
        'demo_pkg-1.0-py3-none-any.whl'
    """
    stem = f"{re.sub(r'[-_.]+', '_', name).lower()}-{version}"
    dist_info = f"{dist_info_name or stem}.dist-info"
    if files is None:
        files = {f"{stem.partition('-')[0]}/__init__.py": ""}

    members = {path: _as_bytes(content) for path, content in files.items()}
    members.update({f"{stem}.data/{path}": _as_bytes(content) for path, content in (data or {}).items()})
    runnable = set(executable) | {f"{stem}.data/{path}" for path in executable}
    links = {path: target.encode() for path, target in (symlinks or {}).items()}
    members.update(links)
    members[f"{dist_info}/METADATA"] = _metadata(
        metadata_name or name, metadata_version or version, requires, requires_python, extras
    )
    members[f"{dist_info}/WHEEL"] = _wheel_file(expand_tag(tag) if wheel_tags is None else wheel_tags, build)
    if entry_points:
        members[f"{dist_info}/entry_points.txt"] = entry_points.encode()
    record_path = f"{dist_info}/RECORD"
    rows = {path: record_row(path, content) for path, content in members.items()} | {record_path: f"{record_path},,"}
    kept = [row for path, row in {**rows, **(record or {})}.items() if row is not None]
    members[record_path] = "".join(f"{row}\n" for row in [*kept, *record_extra]).encode()

    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / (f"{stem}-{build}-{tag}.whl" if build else f"{stem}-{tag}.whl")
    with zipfile.ZipFile(wheel, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a duplicate name is what some tests ask for
        for path, content in members.items():
            mode = stat.S_IFLNK | 0o777 if path in links else stat.S_IFREG | (0o755 if path in runnable else 0o644)
            archive.writestr(_member(path, mode, compression), content)
        for path, content in raw_members:
            archive.writestr(_member(path, stat.S_IFREG | 0o644, compression), content)
    return wheel


def record_row(path: str, content: bytes) -> str:
    """The right row of RECORD for a member, without a newline."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    quoted = f'"{path}"' if "," in path else path
    return f"{quoted},sha256={digest},{len(content)}"


def expand_tag(tag: str) -> list[str]:
    """Every single tag of a compressed set, in the order of its parts.

    Example:
        >>> expand_tag("py2.py3-none-any")
        ['py2-none-any', 'py3-none-any']
    """
    pythons, abis, platforms = (part.split(".") for part in tag.split("-"))
    return [f"{python}-{abi}-{platform}" for python in pythons for abi in abis for platform in platforms]


def _as_bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _metadata(name: str, version: str, requires: Sequence[str], requires_python: str, extras: Sequence[str]) -> bytes:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    if requires_python:
        lines.append(f"Requires-Python: {requires_python}")
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    return "".join(f"{line}\n" for line in lines).encode()


def _wheel_file(tags: Sequence[str], build: str) -> bytes:
    lines = ["Wheel-Version: 1.0", "Generator: envspec-tests", "Root-Is-Purelib: true"]
    lines += [f"Tag: {tag}" for tag in tags]
    if build:
        lines.append(f"Build: {build}")
    return "".join(f"{line}\n" for line in lines).encode()


def _member(path: str, mode: int, compression: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(path, OLDEST_ZIP_TIME)
    info.create_system = 3  # Unix, on every machine: the mode counts
    info.external_attr = mode << 16
    info.compress_type = compression
    return info
