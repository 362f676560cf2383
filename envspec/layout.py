"""Where the members of a wheel lie in an environment, and the files that an installer adds. Pure.

This is the wheel specification (packaging.python.org, "Binary distribution format", read 2026-11-30) for a virtual environment on Linux:

- members at the root go to `lib/python3.N/site-packages`; those of `<name>-<version>.data/` to the scheme that the next path part names;
- a script whose first line is `#!python` gets the interpreter of its environment, console scripts come from `entry_points.txt`;
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

_TRAMPOLINE = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
_PYTHON_SHEBANG = re.compile(rb"#!pythonw?[ \t]*\r?\n")
_ENTRY_POINT = re.compile(r"(?P<module>\w+(?:\.\w+)*)\s*:\s*(?P<attribute>\w+(?:\.\w+)*)\s*(?:\[[^\]]*\])?")
_SCRIPT_NAME = re.compile(r"[^\s/\\\x00-\x1f\x7f](?:[^/\\\x00-\x1f\x7f]*[^\s/\\\x00-\x1f\x7f])?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_DROPPED_METADATA = frozenset(
    {"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}
)
_SCHEMES = frozenset({"purelib", "platlib", "scripts", "data", "headers"})


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
    if len(pieces) not in (5, 6) or not all(pieces):
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
    return None


def find_dist_info(members: Iterable[str], filename: str) -> tuple[str, tuple[Oddity, ...]]:
    """The one `.dist-info` folder at the root of a wheel, and what is odd about it.

    Only the root counts: setuptools, for one, carries 13 nested ones.
    """
    folders = sorted({member.split("/", 1)[0] for member in members if "/" in member})
    found = [folder for folder in folders if folder.endswith(".dist-info")]
    if len(found) != 1:
        return "", (
            Oddity(
                "dist-info", "", f"expected one .dist-info folder, found {len(found)}: {', '.join(found) or 'none'}"
            ),
        )
    stated = split_wheel_name(filename)
    name, _, version = found[0][: -len(".dist-info")].partition("-")
    if stated is not None and (
        normalise_name(name) != normalise_name(stated[0]) or version.replace("_", "-") != stated[1].replace("_", "-")
    ):
        return found[0], (Oddity("dist-info", found[0], f"`{found[0]}` in a wheel named `{filename}`"),)
    return found[0], ()


def console_script(module: str, attribute: str) -> bytes:
    """The content of a generated console script; it runs the `python` that lies beside it, wherever that is."""
    first = attribute.split(".", 1)[0]
    body = f"import sys\n\nfrom {module} import {first}\n\nsys.exit({attribute}())\n"
    return _TRAMPOLINE + body.encode()


def rewrite_script(content: bytes) -> bytes:
    """A script of `.data/scripts` as it is installed: a first line `#!python` becomes a start of the `python` beside it."""
    match = _PYTHON_SHEBANG.match(content)
    return content if match is None else _TRAMPOLINE + content[match.end() :]


def parse_entry_points(text: str) -> tuple[dict[str, tuple[str, str]], tuple[Oddity, ...]]:
    """Console and GUI scripts of an `entry_points.txt`: name -> (module, attribute)."""
    where = "entry_points.txt"
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
            if match is None or _SCRIPT_NAME.fullmatch(name) is None or name in (".", ".."):
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
    headers = f"include/site/python{python}/{stated[0] if stated else 'unknown'}"

    targets: dict[str, str] = {}
    taken: dict[str, str] = {}
    scripts: set[str] = set()
    for member in safe:
        folder, _, rest = member.partition("/")
        if dist_info and folder == dist_info and rest in _DROPPED_METADATA:
            continue
        if data_dir and folder == data_dir:
            scheme, _, rest = rest.partition("/")
            if scheme not in _SCHEMES or not rest:
                oddities.append(Oddity("bad-name", member, f"no installation scheme is named `{scheme}`"))
                continue
            base = {"purelib": site, "platlib": site, "scripts": "bin", "data": "", "headers": headers}[scheme]
            target = f"{base}/{rest}" if base else rest
            if scheme == "scripts":
                scripts.add(member)
        else:
            target = f"{site}/{member}"
        if target in taken:
            oddities.append(Oddity("duplicate-member", member, f"`{taken[target]}` has the same place, `{target}`"))
        elif is_host_path(target):
            oddities.append(_host_path_oddity(member, target))
        else:
            taken[target] = member
            targets[member] = target

    generated: dict[str, bytes] = {}
    entries, entry_oddities = parse_entry_points(entry_points)
    oddities.extend(entry_oddities)
    for name, (module, attribute) in sorted(entries.items()):
        target = f"bin/{name}"
        if target in taken:
            oddities.append(Oddity("duplicate-member", target, f"both `{taken[target]}` and a console script"))
        elif is_host_path(target):
            oddities.append(_host_path_oddity(f"console script {name}", target))
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
        scripts=frozenset(scripts),
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


def _host_path_oddity(member: str, target: str) -> Oddity:
    if "__pycache__" in target.split("/"):
        return Oddity("shipped-bytecode", member, "bytecode is compiled anew, what the wheel brings is left out")
    return Oddity("reserved-path", member, f"`{target}` belongs to the environment itself")
