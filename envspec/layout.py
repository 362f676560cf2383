"""Where the members of a wheel lie in an environment, and the files that an installer adds. Pure.

This is the wheel specification (packaging.python.org, "Binary distribution format", read 2026-11-30) for a virtual environment on Linux:

- members at the root go to `lib/python3.N/site-packages`; those of `<name>-<version>.data/` to the scheme that the next path part names;
- a script whose first line begins with `#!python` gets the interpreter of its environment, console scripts come from `entry_points.txt`;
- `INSTALLER` and `RECORD` are written anew.

Both the prediction of a tree at lock time and the realisation of it use these functions, so that neither can differ from the other. Scripts find
their interpreter beside themselves, which makes a tree independent of its path. What cannot be installed safely is left out and named.

This module is part of the agent: standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import base64
import configparser
import csv
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.tree import is_host_path, parent_dirs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INSTALLER = b"envspec\n"
FIRST_LINE_BYTES = 4096
"""So much of a script decides how its first line is rewritten; what follows is copied."""

LONGEST_NAME_BYTES = 239
"""Of a file or folder: the 255 of Linux, less `.cpython-312.pyc`, so that bytecode has a name too."""

LONGEST_PATH_BYTES = 2048
"""Of a member: half of what Linux has for a whole path."""

# For sh it runs Python on the script, for Python it is a string: it needs nothing but a POSIX shell and `realpath`.
_TRAMPOLINE = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
# A script of a wheel may begin with its encoding, a docstring or `from __future__`, all of which must stay where they are. So its first line
# is replaced by one line (91 bytes of the 127 that old kernels read), for which `env` of coreutils 8.30 is needed.
_SHEBANG = b"""#!/usr/bin/env -S /bin/sh -c 'exec "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"'\n"""
_PYTHON_SHEBANG = re.compile(rb"#!python[^\r\n]{0,1000}(?:\r\n|\r|\n|\Z)")
_ENTRY_POINT = re.compile(r"(?P<module>\w+(?:\.\w+)*)\s*:\s*(?P<attribute>\w+(?:\.\w+)*)\s*(?:\[[^\]]*\])?")
_SCRIPT_NAME = re.compile(r"[^\s/\\\x00-\x1f\x7f](?:[^/\\\x00-\x1f\x7f]*[^\s/\\\x00-\x1f\x7f])?")
_WHEEL_NAME_PIECE = re.compile(r"[\w.+!]*[^\W_][\w.+!]*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LONGEST_ENTRY_POINT_LINE = 1000  # configparser needs the square of it
DROPPED_METADATA = frozenset(
    {"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}
)
"""Files of a `.dist-info` folder that are an installer's: what a wheel brings of them is left out."""


@dataclass(frozen=True)
class Oddity:
    """A member that is left out or looked at twice; kinds are those of `envspec.facts.Anomaly`."""

    kind: str
    path: str
    detail: str


@dataclass(frozen=True)
class Layout:
    """The plan of one wheel's tree."""

    dist_info: str
    """Name of the `.dist-info` folder; empty if the wheel has none that can be used."""

    record_path: str
    """Where the rewritten RECORD lies in the environment; empty with `dist_info`."""

    targets: dict[str, str]
    """Member -> path in the environment, for every member that is installed."""

    scripts: frozenset[str]
    """Members of `.data/scripts`: executable, with `#!python` rewritten."""

    generated: dict[str, bytes]
    """Path in the environment -> content: console scripts and INSTALLER; RECORD comes last, from `record_content`."""

    oddities: tuple[Oddity, ...]


def site_packages(python: str) -> str:
    """Where packages lie in an environment of a Python minor version.

    Example:
        >>> site_packages("3.12")
        'lib/python3.12/site-packages'
    """
    return f"lib/python{python}/site-packages"


def normalise_name(name: str) -> str:
    """A project's name as PEP 503 normalises it.

    Example:
        >>> normalise_name("Apache.TVM__ffi")
        'apache-tvm-ffi'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def split_wheel_name(filename: str) -> tuple[str, str, str, str] | None:
    """Name, version, build tag and compatibility tag as a wheel's file name states them; None if it is no wheel's name.

    Example:
        >>> split_wheel_name("torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl")
        ('torch', '2.11.0', '', 'cp312-cp312-manylinux_2_28_x86_64')
    """
    if not filename.endswith(".whl"):
        return None
    pieces = filename[: -len(".whl")].split("-")
    if len(pieces) not in (5, 6) or not all(map(_WHEEL_NAME_PIECE.fullmatch, pieces)):
        return None
    build = pieces[2] if len(pieces) == 6 else ""
    return pieces[0], pieces[1], build, "-".join(pieces[-3:])


def name_problem(member: str) -> Oddity | None:
    """What is wrong with the name of a member; None if it is safe to join to a folder."""
    if _CONTROL.search(member) or "\\" in member or not member:
        return Oddity("bad-name", member, "a control character, a backslash or no name at all")
    parts = member.split("/")
    if ".." in parts or member.startswith("/"):
        return Oddity("path-escape", member, f"`{member}` leads out of the environment")
    if "." in parts or "" in parts:
        return Oddity("bad-name", member, f"`{member}` is not in its shortest form")
    # A character has at most 4 bytes: most names need not be encoded to be known as short.
    if 4 * len(member) > LONGEST_NAME_BYTES:
        if any(len(part.encode()) > LONGEST_NAME_BYTES for part in parts):
            return Oddity("bad-name", member, f"a name in it has more than {LONGEST_NAME_BYTES} bytes")
        if len(member.encode()) > LONGEST_PATH_BYTES:
            return Oddity("bad-name", member, f"has more than {LONGEST_PATH_BYTES} bytes")
    return None


def find_dist_info(members: Iterable[str], filename: str) -> tuple[str, tuple[Oddity, ...]]:
    """The one `.dist-info` folder at the root of a wheel, and what is odd about it.

    Only the root counts: setuptools, for one, carries 13 nested ones. The local part of the version (`+cu130`) may differ from the file
    name's: what METADATA says of it is judged elsewhere.
    """
    folders = sorted({member.split("/", 1)[0] for member in members if "/" in member})
    found = [folder for folder in folders if _is_dist_info(folder)]
    if len(found) != 1 or not found[0].endswith(".dist-info"):
        return "", (
            Oddity(
                "dist-info", "", f"expected one .dist-info folder, found {len(found)}: {', '.join(found) or 'none'}"
            ),
        )
    stated = split_wheel_name(filename)
    name, _, version = found[0][: -len(".dist-info")].partition("-")
    if stated is not None and (
        normalise_name(name) != normalise_name(stated[0]) or _public_version(version) != _public_version(stated[1])
    ):
        return found[0], (Oddity("dist-info", found[0], f"`{found[0]}` in a wheel named `{filename}`"),)
    return found[0], ()


def console_script(module: str, attribute: str) -> bytes:
    """The content of a generated console script; it runs the `python` that lies beside it, wherever that is.

    Processes that `multiprocessing` spawns run the script once more as `__mp_main__`, and must not start the program again.
    """
    first = attribute.split(".", 1)[0]
    guarded = f'if __name__ == "__main__":\n    sys.exit({attribute}())\n'
    return _TRAMPOLINE + f"import sys\n\nfrom {module} import {first}\n\n{guarded}".encode()


def rewrite_script(content: bytes) -> bytes:
    """A script of `.data/scripts` as it is installed: a first line `#!python…` becomes a start of the `python` beside it.

    As pip and uv do, whatever stands in that line after `#!python` is dropped.

    Args:
        content: The script, or at least its first `FIRST_LINE_BYTES`.
    """
    match = _PYTHON_SHEBANG.match(content)
    return content if match is None else _SHEBANG + content[match.end() :]


def parse_entry_points(text: str) -> tuple[dict[str, tuple[str, str]], tuple[Oddity, ...]]:
    """Console and GUI scripts of an `entry_points.txt`: name -> (module, attribute)."""
    where = "entry_points.txt"
    longest = max(map(len, text.split("\n")))
    if longest > _LONGEST_ENTRY_POINT_LINE:
        return {}, (Oddity("bad-metadata", where, f"cannot be read: it has a line of {longest} characters"),)
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[method-assign,assignment] # script names keep their case
    try:
        parser.read_string(text)
    except configparser.Error as error:
        return {}, (Oddity("bad-metadata", where, f"cannot be read: {str(error).splitlines()[0]}"),)
    scripts: dict[str, tuple[str, str]] = {}
    oddities: list[Oddity] = []
    for group in ("console_scripts", "gui_scripts"):
        if not parser.has_section(group):
            continue
        for name, value in parser.items(group):
            match = _ENTRY_POINT.fullmatch(value.strip())
            if match is None or _SCRIPT_NAME.fullmatch(name) is None or name_problem(name) is not None:
                oddities.append(
                    Oddity("bad-metadata", where, f"script {name!r} = {value!r} is not a name and module:function")
                )
            else:
                scripts[name] = (match["module"], match["attribute"])
    return scripts, tuple(oddities)


def plan_layout(members: Sequence[str], filename: str, python: str, entry_points: str) -> Layout:
    """The tree of a wheel.

    Args:
        members: Names of all file members, in the archive's order, each as the archive writes it.
        filename: Of the wheel.
        python: Minor version, such as `3.12`.
        entry_points: Text of `entry_points.txt`; empty if there is none.
    """
    oddities: list[Oddity] = []
    site = site_packages(python)
    safe: list[str] = []
    for member in members:
        problem = name_problem(member)
        if problem is None:
            safe.append(member)
        else:
            oddities.append(problem)
    dist_info, dist_info_oddities = find_dist_info(safe, filename)
    oddities.extend(dist_info_oddities)
    data_dir = dist_info[: -len(".dist-info")] + ".data" if dist_info else ""
    stated = split_wheel_name(filename)
    distribution = normalise_name(stated[0] if stated else "unknown")
    roots = {
        "purelib": f"{site}/",
        "platlib": f"{site}/",
        "scripts": "bin/",
        "data": "",
        "headers": f"include/site/python{python}/{distribution}/",
    }
    dropped = {f"{site}/{dist_info}/{name}" for name in DROPPED_METADATA if dist_info}

    targets: dict[str, str] = {}
    taken: dict[str, str] = {}
    scripts: set[str] = set()
    for member in safe:
        folder, _, rest = member.partition("/")
        scheme = ""
        if data_dir and folder == data_dir:
            scheme, _, rest = rest.partition("/")
            if scheme not in roots or not rest:
                oddities.append(Oddity("bad-name", member, f"no installation scheme is named `{scheme}`"))
                continue
            target = roots[scheme] + rest
        else:
            target = f"{site}/{member}"
        if target in dropped:
            continue
        if target in taken:
            oddities.append(Oddity("duplicate-member", member, f"`{taken[target]}` has the same place, `{target}`"))
        elif scheme == "scripts" and "/" in rest:
            oddities.append(Oddity("bad-name", member, "a script lies in a folder, `bin/` has none"))
        elif problem := _host_path_oddity(member, target) or _metadata_oddity(member, target, site, dist_info):
            oddities.append(problem)
        else:
            taken[target] = member
            targets[member] = target
            if scheme == "scripts":
                scripts.add(member)

    generated: dict[str, bytes] = {}
    entries, entry_oddities = parse_entry_points(entry_points)
    oddities.extend(entry_oddities)
    for name, (module, attribute) in sorted(entries.items()):
        target = f"bin/{name}"
        if target in taken:
            oddities.append(Oddity("duplicate-member", target, f"both `{taken[target]}` and a console script"))
        elif problem := _host_path_oddity(f"console script {name}", target):
            oddities.append(problem)
        else:
            generated[target] = console_script(module, attribute)
    if dist_info:
        generated[f"{site}/{dist_info}/INSTALLER"] = INSTALLER

    folders = parent_dirs([*taken, *generated])
    for target in sorted(folders & taken.keys()):
        member = taken[target]
        oddities.append(Oddity("duplicate-member", member, f"`{target}` is a file and a folder"))
        targets.pop(member)
    for target in sorted(folders & generated.keys()):
        oddities.append(Oddity("duplicate-member", target, f"`{target}` is a console script and a folder"))
        generated.pop(target)
    return Layout(
        dist_info=dist_info,
        record_path=f"{site}/{dist_info}/RECORD" if dist_info else "",
        targets=targets,
        scripts=frozenset(scripts & targets.keys()),
        generated=generated,
        oddities=tuple(oddities),
    )


def record_content(record_path: str, files: Iterable[tuple[str, str, int]]) -> bytes:
    """The RECORD of a tree: every file of it but bytecode, sorted, RECORD itself without a digest.

    Args:
        record_path: Where RECORD lies in the environment.
        files: Path in the environment, sha256 (hex), size in bytes.
    """
    site = record_path.rsplit("/", 2)[0]
    up = "../" * (site.count("/") + 1)

    def relative(path: str) -> str:
        return path[len(site) + 1 :] if path.startswith(site + "/") else up + path

    rows = [
        (relative(path), "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("="), str(size))
        for path, sha256, size in files
    ]
    rows.append((relative(record_path), "", ""))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    return text.getvalue().encode("utf-8", "surrogateescape")


def _is_dist_info(folder: str) -> bool:
    """Whether Python takes a folder for the metadata of a distribution: in upper case too."""
    return folder.lower().endswith(".dist-info")


def _public_version(version: str) -> str:
    """A version without its local part, in which file names write `_` for `-`."""
    return version.partition("+")[0].replace("_", "-").lower()


def _host_path_oddity(member: str, target: str) -> Oddity | None:
    if "__pycache__" in target.split("/"):
        return Oddity("shipped-bytecode", member, "bytecode is compiled anew, what the wheel brings is left out")
    if target == "bin" or any(is_host_path(place) for place in (target, *parent_dirs([target]))):
        return Oddity("reserved-path", member, f"`{target}` belongs to the environment itself")
    return None


def _metadata_oddity(member: str, target: str, site: str, dist_info: str) -> Oddity | None:
    """What is wrong with a file of a `.dist-info` folder: nothing if it is the wheel's own, and in no file's place."""
    folder, _, rest = target.removeprefix(f"{site}/").partition("/")
    if dist_info and rest and target.startswith(f"{site}/") and _is_dist_info(folder):
        if folder != dist_info:
            return Oddity("dist-info", member, f"`{target}` is metadata of another distribution")
        name = rest.partition("/")[0]
        if name in DROPPED_METADATA:
            return Oddity("duplicate-member", member, f"`{site}/{dist_info}/{name}` is a file and a folder")
    return None
