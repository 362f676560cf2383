"""The index of a bundle: what it has, by path, size and sha256. Pure.

A bundle is a folder, or a tar of it in which the members stand in the order of the index, each with the one header that follows from its row. So
whoever reads it knows every byte that may come, and a tar that is cut off, or has more than its index says, is refused. Of a folder only what
the index lists is looked at.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envspec.canonical import canonical_json
from envspec.errors import FOUND_WRONG, EnvspecError
from envspec.layout import name_problem

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = 1
UNFINISHED = 0
"""Format of what stands in the place of an index while a folder is written."""

INDEX = "bundle.json"
AGENT, INSTALL, ORDER, UV = "agent.zip", "install", "order.json", "uv"
SPEC_FOLDER, WHEELS_FOLDER = "spec/", "wheels/"
INDEX_LIMIT_BYTES = 16 << 20
MEMBERS_LIMIT = 20_000
LARGEST_BYTES = 1 << 40

_SHA256 = re.compile(r"[0-9a-f]{64}")
_WHEEL = re.compile(r"wheels/([0-9a-f]{64})/([A-Za-z0-9_.+!-]+\.whl)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleMember:
    """One file of a bundle."""

    path: str
    size: int
    sha256: str
    executable: bool = False

    @property
    def wheel(self) -> tuple[str, str] | None:
        """The sha256 and the file name that its path has, if it is a wheel's."""
        match = _WHEEL.fullmatch(self.path)
        return None if match is None else (match[1], match[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleIndex:
    """What a bundle has."""

    name: str
    """Of the environment."""

    env: str
    site: str
    spec: str
    """File name of the spec; the lock lies beside it."""

    members: tuple[BundleMember, ...]
    """In their order: the spec with all that belongs to it, then what is small, then wheels."""

    @property
    def lock(self) -> str:
        """File name of the lock."""
        return f"{self.spec.rpartition('.')[0]}.lock"


def index_bytes(index: BundleIndex) -> bytes:
    """The index as it is written."""
    rows = [
        {"path": each.path, "size": each.size, "sha256": each.sha256, "executable": each.executable}
        for each in index.members
    ]
    fields = {"name": index.name, "env": index.env, "site": index.site, "spec": index.spec, "members": rows}
    return canonical_json({"bundle": FORMAT, **fields}) + b"\n"


def unfinished_bytes(paths: Iterable[str]) -> bytes:
    """What stands in the place of an index while a folder is written: which paths may be there.

    Args:
        paths: Of the members, and of those of the bundle that was there.
    """
    return canonical_json({"bundle": UNFINISHED, "paths": sorted(set(paths))}) + b"\n"


def paths_of(raw: bytes) -> tuple[str, ...] | None:
    """Paths that a folder has because an export wrote them there; None if no export did.

    Args:
        raw: The bytes in the place of its index.
    """
    try:
        return tuple(member.path for member in parse_index(raw, input_name=INDEX).members)
    except EnvspecError:
        pass
    try:
        value = json.loads(raw)
        if value["bundle"] == UNFINISHED and all(_is_path(path) for path in value["paths"]):
            return tuple(value["paths"])
    except (ValueError, RecursionError, KeyError, TypeError):
        pass
    return None


def parse_index(raw: bytes, *, input_name: str) -> BundleIndex:
    """The index of a bundle.

    Args:
        raw: Its bytes.
        input_name: Of the bundle, for messages.

    Raises:
        EnvspecError: It is none, or has a path that no bundle has.
    """
    try:
        value = json.loads(raw)
        found = value.get("bundle")
    except (ValueError, RecursionError, AttributeError) as error:
        raise _no_bundle("its index is no JSON object", input_name) from error
    if found == UNFINISHED:
        raise _no_bundle("the export that writes it did not come to its end", input_name)
    if found != FORMAT:
        raise _no_bundle(f"it has format {str(found)[:20]}, this envspec knows {FORMAT}", input_name)
    try:
        index = BundleIndex(
            name=_text(value["name"]),
            env=_text(value["env"]),
            site=_text(value["site"]),
            spec=_text(value["spec"]),
            members=tuple(_member(row) for row in value["members"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _no_bundle(f"its index is not one: {type(error).__name__} {str(error)[:100]}", input_name) from error
    paths = [each.path for each in index.members]
    if len(set(paths)) != len(paths) or len(paths) > MEMBERS_LIMIT:
        raise _no_bundle(f"it lists {len(paths)} members, {len(set(paths))} of them different", input_name)
    order = [_rank(path) for path in paths]
    if order != sorted(order) or not {f"{SPEC_FOLDER}{index.spec}", f"{SPEC_FOLDER}{index.lock}"} <= set(paths):
        raise _no_bundle("its members are in another order, or it has no spec or no lock", input_name)
    return index


def _member(row: dict[str, Any]) -> BundleMember:
    path, size, sha256 = _text(row["path"]), row["size"], _text(row["sha256"])
    if not _is_path(path):
        raise ValueError(f"`{path[:80]}` is no path of a bundle")
    if type(size) is not int or not 0 <= size < LARGEST_BYTES or _SHA256.fullmatch(sha256) is None:
        raise ValueError(f"`{path[:80]}` has no size and sha256")
    member = BundleMember(path=path, size=size, sha256=sha256, executable=row["executable"] is True)
    if member.wheel is not None and member.wheel[0] != sha256:
        raise ValueError(f"`{path[:80]}` has the sha256 {sha256}")
    return member


def _is_path(path: object) -> bool:
    """Whether a bundle may have a member there."""
    return isinstance(path, str) and name_problem(path) is None and _rank(path) >= 0


def _rank(path: str) -> int:
    """Where a member stands; -1 if a bundle has no such path."""
    if path.startswith(SPEC_FOLDER):
        return 0
    if path in {AGENT, INSTALL, ORDER, UV}:
        return 1
    return 2 if _WHEEL.fullmatch(path) else -1


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is none")
    return value


def _no_bundle(reason: str, input_name: str) -> EnvspecError:
    return EnvspecError(
        f"this is no bundle that can be read: {reason}",
        input_name=input_name,
        hint="make it anew with `envspec export --format bundle`",
        exit_code=FOUND_WRONG,
    )
