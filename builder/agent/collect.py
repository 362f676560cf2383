"""Garbage collection: what no generation and no running process uses is removed.

Roots are all generations of all profiles, and the environments that processes of this machine run from. Everything that builds holds `locks/gc`
shared, so nothing is collected that is just being made.

Standard library only, CPython >= 3.10.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.agent.generations import list_generations, profile_names, remove_generation
from builder.agent.store import Store, read_json, remove_readonly_tree

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Garbage:
    """What a collection removes, or would remove."""

    paths: tuple[Path, ...]
    """In the order of removal: environments before what they are linked from."""

    generations: tuple[tuple[str, int], ...]
    """Profile and number."""

    freed_bytes: int
    """What the file system gets back: a file that still has links elsewhere does not count."""

    in_use: tuple[tuple[str, int], ...]
    """Env id and pid of running processes that kept an environment."""


def find_garbage(store: Store, *, keep: int | None, proc: Path) -> Garbage:
    """What can be removed. The caller holds `locks/gc` alone if it means to remove it.

    Args:
        store: The store.
        keep: How many of the newest generations of each profile stay, the active one always; None for all.
        proc: Where the kernel shows processes: `/proc`.
    """
    dropped: list[tuple[str, int]] = []
    kept_envs: set[str] = set()
    for name in profile_names(store):
        generations = list_generations(store, name)
        newest = {
            generation.number for generation in (generations if keep is None else generations[-keep:] if keep else ())
        }
        for generation in generations:
            if generation.active or generation.number in newest:
                kept_envs.add(generation.env)
            else:
                dropped.append((name, generation.number))
    running = running_environments(store, proc)
    kept_envs |= {env for env, _ in running}
    kept: dict[str, set[str]] = {"wheels": set(), "trees": set(), "bytecode": set()}
    for env in kept_envs:
        record = read_json(store.receipts(env) / "env.json")
        for part in (record or {}).get("parts", ()):
            kept["wheels"] |= {part["sha256"], part["base_sha256"]}
            for tree in filter(None, (part["tree"], part["donor"])):
                kept["trees"].add(tree)
                kept["bytecode"].add(f"{tree}-{(record or {})['bytecode_tag']}")
    paths = [path for path in sorted((store.root / "envs").iterdir()) if path.name.partition("-")[0] not in kept_envs]
    for folder in ("receipts", "state"):
        paths += [path for path in sorted((store.root / folder).iterdir()) if path.name not in kept_envs]
    for kind in ("bytecode", "trees"):
        paths += [
            path
            for path in sorted((store.root / kind).iterdir())
            if path.name.removesuffix(".mtree").removesuffix(".proven") not in kept[kind]
        ]
    # Wheels can be fetched again, trees are made from them: a wheel goes when nothing kept was made from it.
    paths += [path for path in sorted((store.root / "wheels").iterdir()) if path.name not in kept["wheels"]]
    return Garbage(
        paths=tuple(paths),
        generations=tuple(dropped),
        freed_bytes=_freed_bytes(paths),
        in_use=tuple(running),
    )


def remove_garbage(store: Store, garbage: Garbage) -> None:
    """Remove it. The caller holds `locks/gc` alone; what an interruption leaves is garbage again.

    Raises:
        OSError: Something cannot be removed.
    """
    for name, number in garbage.generations:
        remove_generation(store, name, number)
    trash = store.root / ".tmp"
    for path in garbage.paths:
        # First out of its place, so that no half of it is ever found there.
        if path.is_dir() and not path.is_symlink():
            moved = trash / f"gc.{os.getpid()}-{path.name}"
            with contextlib.suppress(PermissionError):
                path.chmod(0o755)
            path.rename(moved)
            remove_readonly_tree(moved)
        else:
            path.unlink(missing_ok=True)
    store.sweep()


def running_environments(store: Store, proc: Path) -> list[tuple[str, int]]:
    """Env id and pid of each process that runs from an environment of the store, as far as this user may see.

    Looked at, for each process: what it has mapped, its working folder, its command line, VIRTUAL_ENV and PATH (an environment's `python` is a
    link, so the executable itself lies elsewhere).
    """
    prefix = os.fspath((store.root / "envs").resolve()).encode() + b"/"
    pattern = re.compile(re.escape(prefix) + rb"([a-z2-7]{32})-")
    profiles = re.compile(
        re.escape(os.fspath(store.root.resolve()).encode())
        + rb"/(?:profiles/[^/\x00]+|generations/[^/\x00]+/\d+)(?=/|\x00|$)"
    )
    found: set[tuple[str, int]] = set()
    for entry in sorted(proc.iterdir()):
        if not entry.name.isdecimal():
            continue
        text = b"\0".join(_proc_texts(entry))
        envs = {match[1].decode() for match in pattern.finditer(text)}
        for match in profiles.finditer(text):
            target = pattern.match(os.fsencode(os.path.realpath(os.fsdecode(match[0]))))
            if target:
                envs.add(target[1].decode())
        found |= {(env, int(entry.name)) for env in envs}
    return sorted(found)


def _proc_texts(process: Path) -> list[bytes]:
    texts: list[bytes] = []
    for name in ("maps", "cmdline"):
        with contextlib.suppress(OSError):
            texts.append((process / name).read_bytes())
    with contextlib.suppress(OSError):
        texts += [
            part
            for part in (process / "environ").read_bytes().split(b"\0")
            if part.startswith((b"VIRTUAL_ENV=", b"PATH="))
        ]
    for name in ("cwd", "exe"):
        with contextlib.suppress(OSError):
            texts.append(os.fsencode(os.readlink(process / name)) + b"/")  # noqa: PTH115 - bytes
    return texts


def _freed_bytes(paths: list[Path]) -> int:
    """Bytes of the inodes whose every link is among the paths."""
    links: dict[tuple[int, int], int] = {}
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    for path in paths:
        for folder, _, names in os.walk(path) if path.is_dir() else [(os.fspath(path.parent), [], [path.name])]:
            for name in names:
                status = os.lstat(f"{folder}/{name}")
                inode = (status.st_dev, status.st_ino)
                links[inode] = links.get(inode, 0) + 1
                sizes[inode] = (status.st_blocks * 512, status.st_nlink)
    return sum(size for inode, (size, count) in sizes.items() if links[inode] >= count)
