"""A wheel -> its facts: what a lock needs to know, measured once and cached by the wheel's sha256.

Nothing of the wheel is executed, and nothing is believed: every member is inflated and hashed, and RECORD, METADATA and WHEEL are compared with
what is there. Judging is `envspec.checks`'s.
"""

from __future__ import annotations

import base64
import csv
import email.parser
import io
import json
import os
import re
from typing import TYPE_CHECKING

from builder.agent.archive import ArchiveDamaged
from builder.agent.store import write_new
from builder.agent.unpack import WheelTree, read_wheel
from builder.facts_cache import facts_path
from builder.inspect_binaries import BinaryInspector
from builder.startup_hooks import is_pth, startup_hook
from envspec.facts import (
    Anomaly,
    InstalledFile,
    WheelFacts,
    wheel_facts_from_json,
    wheel_facts_to_json,
)
from envspec.layout import DROPPED_METADATA, normalise_name, site_packages, split_wheel_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from email.message import Message
    from pathlib import Path

    from envspec.facts import StartupHook

_METADATA_NAMES = frozenset({"METADATA", "WHEEL", "RECORD"})
_UNHASHED = frozenset({"RECORD", "RECORD.jws", "RECORD.p7s"})
_SITE_DATA = re.compile(r"[^/]+\.data/(purelib|platlib|data/lib/python[^/]+/site-packages)/[^/]+\.pth")


def measure_wheel(
    wheel: Path, *, filename: str, sha256: str, python: str, advance: Callable[[int], None] | None = None
) -> WheelFacts:
    """Measure a wheel.

    Args:
        wheel: The file, its sha256 checked before.
        filename: Its name as an index gives it.
        sha256: Of the file.
        python: Minor version of the environment's Python.
        advance: Told the inflated bytes as they pass.

    Returns:
        Its facts. A wheel that cannot be read gives facts with an anomaly and without files, not an exception.
    """
    size = wheel.stat().st_size
    stated = split_wheel_name(filename) or (filename, "", "", "")
    try:
        inspector = BinaryInspector(python)
        tree = read_wheel(wheel, filename, python, keep=_is_kept, advance=advance, watch=inspector.watch)
        binaries = inspector.finish(wheel)
    except ArchiveDamaged as error:
        return WheelFacts(
            filename=filename,
            sha256=sha256,
            size=size,
            python=python,
            name=normalise_name(stated[0]),
            version="",
            requires_python="",
            requires_dist=(),
            provides_extra=(),
            wheel_tags=(),
            scripts=(),
            hooks=(),
            files=(),
            anomalies=(Anomaly(kind=error.kind, path=error.member, detail=error.detail),),
            tree="",
        )
    anomalies = [Anomaly(kind=oddity.kind, path=oddity.path, detail=oddity.detail) for oddity in tree.oddities]
    metadata = _message(tree, "METADATA", ("Name", "Version"), anomalies)
    wheel_file = _message(tree, "WHEEL", (), anomalies)
    anomalies.extend(_record_anomalies(tree))
    files = tuple(
        InstalledFile(path=entry.path, sha256=entry.sha256, size=entry.size, executable=entry.executable)
        for entry in tree.files
    )
    return WheelFacts(
        filename=filename,
        sha256=sha256,
        size=size,
        python=python,
        name=normalise_name(_header(metadata, "Name") or stated[0]),
        version=_header(metadata, "Version"),
        requires_python=_header(metadata, "Requires-Python"),
        requires_dist=_headers(metadata, "Requires-Dist"),
        provides_extra=_headers(metadata, "Provides-Extra"),
        wheel_tags=_headers(wheel_file, "Tag"),
        scripts=tuple(file.path[len("bin/") :] for file in files if file.path.startswith("bin/")),
        hooks=_hooks(tree, python),
        files=files,
        anomalies=tuple(anomalies),
        tree=tree.digest,
        binaries=binaries,
    )


def read_facts(facts_dir: Path, sha256: str, python: str) -> WheelFacts | None:
    """Facts from the cache; None if they are not there or were measured by another inspector."""
    try:
        return wheel_facts_from_json(json.loads(facts_path(facts_dir, sha256, python).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # the last one where a table is no table
        return None


def write_facts(facts_dir: Path, facts: WheelFacts) -> None:
    """Put facts into the cache, atomically."""
    path = facts_path(facts_dir, facts.sha256, facts.python)
    facts_dir.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write_new(temporary, json.dumps(wheel_facts_to_json(facts), separators=(",", ":")).encode())
    temporary.replace(path)


def _is_kept(member: str) -> bool:
    folder, _, rest = member.partition("/")
    if not rest:
        return folder.endswith(".pth")
    if folder.endswith(".dist-info"):
        return rest in _METADATA_NAMES
    return _SITE_DATA.fullmatch(member) is not None


def _message(tree: WheelTree, name: str, needed: tuple[str, ...], anomalies: list[Anomaly]) -> Message | None:
    """The headers of a file of the `.dist-info` folder; what is missing there is added to the anomalies."""
    dist_info = tree.layout.dist_info
    if not dist_info:
        return None
    content = tree.kept.get(f"{dist_info}/{name}")
    if content is None:
        anomalies.append(Anomaly(kind="bad-metadata", path=f"{dist_info}/{name}", detail="is missing"))
        return None
    message = email.parser.Parser().parsestr(content.decode("utf-8", "replace"), headersonly=True)
    anomalies.extend(
        Anomaly(kind="bad-metadata", path=f"{dist_info}/{name}", detail=f"has no `{header}`")
        for header in needed
        if not _header(message, header)
    )
    return message


def _header(message: Message | None, name: str) -> str:
    values = _headers(message, name)
    return values[0] if values else ""


def _headers(message: Message | None, name: str) -> tuple[str, ...]:
    if message is None:
        return ()
    return tuple(" ".join(str(value).split()) for value in message.get_all(name, ()))


def _record_anomalies(tree: WheelTree) -> list[Anomaly]:
    """RECORD against what is there: wrong digests, rows without a member, members without a row."""
    dist_info = tree.layout.dist_info
    if not dist_info:
        return []
    content = tree.kept.get(f"{dist_info}/RECORD")
    if content is None:
        return [Anomaly(kind="bad-metadata", path=f"{dist_info}/RECORD", detail="is missing")]
    found: list[Anomaly] = []
    try:
        rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8", "replace"))) if row]
    except csv.Error as error:
        return [Anomaly(kind="bad-metadata", path=f"{dist_info}/RECORD", detail=f"cannot be read: {error}")]
    # In the archive, but not read, since they are not installed.
    unread = {f"{dist_info}/{name}" for name in DROPPED_METADATA} | {oddity.path for oddity in tree.oddities}
    recorded: set[str] = set()
    for row in rows:
        path, stated, size = (*row, "", "")[:3]
        clean = re.sub(r"^(\./|/)+", "", path.replace("\\", "/"))
        if clean != path:
            found.append(Anomaly(kind="record-path", path=path, detail=f"is written `{path}`"))
        recorded.add(clean)
        actual = tree.members.get(clean)
        if actual is None:
            if clean not in unread:
                found.append(Anomaly(kind="record-ghost", path=clean, detail="stands in RECORD, not in the archive"))
        elif clean.rpartition("/")[2] not in _UNHASHED or clean.rpartition("/")[0] != dist_info:
            found.extend(_row_anomalies(clean, stated, size, actual))
    found.extend(
        Anomaly(kind="unrecorded", path=member, detail="is in the archive, not in RECORD")
        for member in sorted(tree.members)
        if member not in recorded
        and not (member.startswith(f"{dist_info}/") and member.rpartition("/")[2] in _UNHASHED)
    )
    return found


def _row_anomalies(path: str, stated: str, size: str, actual: tuple[str, int]) -> list[Anomaly]:
    sha256, length = actual
    algorithm, _, value = stated.partition("=")
    if algorithm == "sha256":
        right = base64.urlsafe_b64encode(bytes.fromhex(sha256)).decode().rstrip("=")
        if value.rstrip("=") != right:
            return [
                Anomaly(
                    kind="record-hash", path=path, detail=f"RECORD says sha256={value}, the file has sha256={right}"
                )
            ]
    else:
        what = f"{algorithm}, which is not checked" if algorithm else "no digest"
        return [
            Anomaly(kind="record-hash", path=path, detail=f"RECORD has {what} for it, the file has sha256 {sha256}")
        ]
    if size and size != str(length):
        return [Anomaly(kind="record-hash", path=path, detail=f"RECORD says {size} bytes, the file has {length}")]
    return []


def _hooks(tree: WheelTree, python: str) -> tuple[StartupHook, ...]:
    site = site_packages(python) + "/"
    sources = {target: member for member, target in tree.layout.targets.items()}
    found: list[StartupHook] = []
    for entry in tree.files:
        if not entry.path.startswith(site):
            continue
        path = entry.path[len(site) :]
        content = tree.kept[sources[entry.path]] if is_pth(path) else b""
        hook = startup_hook(path, entry.sha256, content)
        if hook is not None:
            found.append(hook)
    return tuple(found)
