"""An adoption -> the text of its spec. What comes of it has been read back by the reader of specs, or it is not given.

Every name and version is checked for its form before it is written, and every string is one of TOML.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envspec.adoption.versions import parsed_version
from envspec.forms import PACKAGE_NAME, RELATIVE_PATH
from envspec.printable import printable
from envspec.spec_toml import parse_spec
from envspec.toml_writing import key_lines, string, table_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from envspec.adoption.requirements import Needs
    from envspec.adoption.target import AdoptedTarget
    from envspec.adoption.values import Collision, Overlay, Pin
    from envspec.spec import IndexSpec

LONGEST_COMMENT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedHost:
    """The host that has the venv."""

    name: str
    compute: str
    """Of its GPUs; empty if it has none, or several kinds."""

    gpus: int
    venv: str
    """Its prefix: what is installed there and has the locked bytes need not be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecParts:
    """What a spec is made of."""

    name: str
    target: AdoptedTarget
    libraries: tuple[str, ...]
    pins: tuple[Pin, ...]
    needs: Needs
    overlays: tuple[Overlay, ...]
    indexes: tuple[IndexSpec, ...]
    collisions: tuple[Collision, ...]
    host: AdoptedHost | None = None


def is_pinnable(name: str, version: str) -> bool:
    """Whether a name and a version can stand in a spec, and be asked for."""
    return parsed_version(version) is not None and re.fullmatch(PACKAGE_NAME.pattern, name) is not None


def spec_text(parts: SpecParts) -> str:
    """The spec.

    Raises:
        EnvspecError: It would not be one; this is a bug, or the venv has no package that could be adopted.
    """
    target = parts.target
    lines = ["# Written by `envspec adopt`; `adopt-report.md` says what it explains of the venv, and what it does not."]
    lines += key_lines(("envspec", 1), ("name", parts.name))
    lines += table_lines("[python]", ("version", target.python))
    if target.python_exact:
        lines.append(f"# The venv has {target.python_exact}; `exact` would refuse every other patch level.")
    lines += table_lines(
        "[target]", ("platform", target.platform), ("glibc", target.glibc), ("libraries", parts.libraries)
    )
    if target.cuda_toolkit:
        lines += table_lines("[cuda]", ("toolkit", target.cuda_toolkit), ("compute", target.compute))
    lines += ["", "[packages]", *_package_lines(parts.pins)]
    overridden = sorted({conflict.name for conflict in parts.needs.conflicts if conflict.version})
    if overridden:
        lines += ["", "[overrides]", *_override_lines(parts, overridden)]
    for overlay in parts.overlays:
        lines += table_lines(f"[overlays.{overlay.package}]", ("series", series_path(overlay.package)))
    for index in parts.indexes:
        lines += table_lines(f"[indexes.{index.name}]", ("url", index.url), ("packages", index.packages))
    for collision in parts.collisions:
        lines += _waiver_lines(collision)
    if parts.host is not None:
        lines += _host_lines(parts.host)
    text = "\n".join(lines) + "\n"
    parse_spec(text, input_name=f"{parts.name}.toml")
    return text


def series_path(package: str) -> str:
    """Where the series of a package lies, relative to the spec."""
    return f"overlays/{package}/series"


def _package_lines(pins: Sequence[Pin]) -> Iterable[str]:
    groups = (
        ("", [pin for pin in pins if pin.wanted]),
        (
            "# Needed by the packages above; pinned, so that the lock is what the venv is.",
            [pin for pin in pins if not pin.wanted and not pin.stands_in],
        ),
        (
            "# Needed too, but the venv has other bytes than the index has of this version: see the report.",
            [pin for pin in pins if pin.stands_in],
        ),
    )
    for comment, group in groups:
        if comment and group:
            yield comment
        for pin in group:
            yield f"{pin.name} = {string(f'=={_canonical(pin.version)}')}"


def _override_lines(parts: SpecParts, overridden: Sequence[str]) -> Iterable[str]:
    pinned = {pin.name: pin.version for pin in parts.pins}
    for name in overridden:
        for conflict in parts.needs.conflicts:
            if conflict.name == name:
                yield comment(f"{conflict.requester} asks for `{conflict.line}`")
        value = string(f"=={_canonical(pinned[name])}")
        extras = parts.needs.extras.get(name, ())
        if extras:
            value = f"{{ version = {value}, extras = [{', '.join(string(extra) for extra in extras)}] }}"
        yield f"{name} = {value}"


def _waiver_lines(collision: Collision) -> list[str]:
    package = next(name for name in collision.packages)
    return table_lines(
        "[[waivers]]",
        ("check", "script-collision" if collision.path.startswith("bin/") else "file-collision"),
        ("package", package),
        ("path", glob_escaped(collision.path)),
        ("owner", collision.owner),
        ("reason", f"the venv has the file of {collision.owner}"),
    )


def _host_lines(host: AdoptedHost) -> list[str]:
    """The table of a host; nothing if its name cannot stand in a spec."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", host.name):
        return []
    key = host.name if re.fullmatch(r"[A-Za-z0-9_-]+", host.name) else string(host.name)
    plain = re.fullmatch(rf"/{RELATIVE_PATH.pattern}", host.venv)
    pairs: list[tuple[str, str | int | Sequence[str]]] = [("compute", host.compute)]
    if host.gpus:
        pairs.append(("gpus", host.gpus))
    return table_lines(f"[hosts.{key}]", *pairs, ("reuse", (host.venv,) if plain else ()))


def glob_escaped(path: str) -> str:
    """A pattern (fnmatch) that matches this path and no other.

    Example:
        >>> glob_escaped("a[1]*.py")
        'a[[]1][*].py'
    """
    return re.sub(r"([*?\[])", r"[\1]", path)


def comment(text: str) -> str:
    """A comment of TOML: one line, whatever the text is."""
    clean = printable(text).replace("\n", " ")
    return f"# {clean[:LONGEST_COMMENT]}{'...' if len(clean) > LONGEST_COMMENT else ''}"


def _canonical(version: str) -> str:
    from packaging.version import Version  # noqa: PLC0415 - as above

    return str(Version(version))
