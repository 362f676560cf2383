"""Files as a patch series leaves them, for a review: from the patched wheel in the store, else from the base wheel and the patches."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from typing import TYPE_CHECKING

from builder.review_inputs import MOST_MEMBER_BYTES
from envspec.errors import EnvspecError
from envspec.patch import apply_patches, parse_patch

if TYPE_CHECKING:
    from pathlib import Path

    from builder.agent.store import Store
    from envspec.diff.sides import Side
    from envspec.lock import LockedOverlay

_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_members(store: Store, side: Side, other: Side) -> dict[tuple[str, str], bytes | None]:
    """The files that come out of the patches otherwise than on the other side: package and path -> content, None if it is removed.

    Args:
        store: Has the wheels, or not.
        side: Whose files are wanted, with its patches.
        other: What it is compared with.
    """
    found: dict[tuple[str, str], bytes | None] = {}
    for package, overlay in side.overlays.items():
        against = other.overlays.get(package)
        if against is None or against == overlay:
            continue
        for path, digest in _wanted(overlay, against).items():
            content = _member(store, side, overlay, path) if digest else None
            if not digest:
                found[package, path] = None
            elif content is not None and hashlib.sha256(content).hexdigest() == digest:
                found[package, path] = content
    return found


def _wanted(overlay: LockedOverlay, against: LockedOverlay) -> dict[str, str]:
    """Path -> sha256 after the patches, of what differs; empty if it is not there."""
    own = {file.path: file for file in overlay.files}
    rival = {file.path: file for file in against.files}
    found = {}
    for path in own.keys() | rival.keys():
        if path in own and path in rival and own[path].after == rival[path].after:
            continue
        if path in own:
            found[path] = own[path].after
        elif overlay.base_sha256 == against.base_sha256:
            found[path] = rival[path].before
    return found


def _member(store: Store, side: Side, overlay: LockedOverlay, path: str) -> bytes | None:
    patched = _from_wheel(store.wheel(overlay.sha256, overlay.file), path)
    if patched is not None:
        return patched
    package = side.packages[overlay.package]
    base = store.wheel(package.sha256, package.file)
    contents = [side.patches.get((overlay.package, patch.name)) for patch in overlay.patches]
    patches = [content for content in contents if content is not None]
    if len(patches) < len(contents) or not base.is_file():
        return None
    try:
        parsed = [
            parse_patch(content, input_name=patch.name) for content, patch in zip(patches, overlay.patches, strict=True)
        ]
        after = apply_patches(parsed, lambda member: _from_wheel(base, member), input_name=overlay.series)
    except EnvspecError:
        return None
    return after[path] if path in after else _from_wheel(base, path)


def _from_wheel(wheel: Path, path: str) -> bytes | None:
    """A member, if it is there and not too long to be compared."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(path) as member:
            content = member.read(MOST_MEMBER_BYTES + 1)
    except _UNREADABLE:
        return None
    return content if len(content) <= MOST_MEMBER_BYTES else None
