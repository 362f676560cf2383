"""Garbage collection: what no generation and no running process uses is removed.

Roots are all generations of all profiles, and the environments that processes of this machine run from. Everything that builds or switches holds
`locks/gc` shared, so nothing is collected that is just being made or activated.

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
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from pathlib import Path


CLOCK_SLACK_S = 2.0
_LEADING_VARIABLES = (b"VIRTUAL_ENV=", b"PATH=", b"PYTHONPATH=", b"LD_LIBRARY_PATH=")


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


def check_may_collect(store: Store) -> None:
    """See that this user can know what is garbage.

    Raises:
        EnvspecError: A group shares the store, and this user does not see what the others run.
    """
    if store.shared and os.geteuid() != 0:
        raise EnvspecError(
            f"a group shares the store `{store.root}`: only root sees which environments its users run",
            hint="have root run `envspec gc`; `--dry-run` says what could go",
        )


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
    environments = sorted((store.root / "envs").iterdir())
    paths = [path for path in environments if path.name.partition("-")[0] not in kept_envs]
    last = _last_of_hosts(store)
    for folder in ("receipts", "state"):
        stay = kept_envs | last if folder == "receipts" else kept_envs
        paths += [path for path in sorted((store.root / folder).iterdir()) if path.name not in stay]
    kept = _kept_objects(store, kept_envs, {path.name.partition("-")[0] for path in environments})
    for kind, names in kept.items():
        paths += [
            path
            for path in sorted((store.root / kind).iterdir())
            if path.name.removesuffix(".mtree").removesuffix(".proven") not in names
        ]
    pythons = store.root / "pythons"
    if kept and pythons.is_dir():
        used = _kept_pythons(store, kept_envs)
        paths += [path for path in sorted(pythons.iterdir()) if not any(each.startswith(f"{path}/") for each in used)]
    return Garbage(
        paths=tuple(paths),
        generations=tuple(dropped),
        freed_bytes=_freed_bytes(paths),
        in_use=tuple(running),
    )


def _last_of_hosts(store: Store) -> set[str]:
    """The env ids whose receipts say what hosts had last: `<name>@<host>.<kind>.json` (`builder.host_receipts`)."""
    last: dict[str, tuple[str, str]] = {}
    for path in (store.root / "receipts").glob("*/*@*.json"):
        seen = (read_json(path) or {}).get("seen")
        time = str(seen.get("time") if isinstance(seen, dict) else "")
        last[path.name] = max(last.get(path.name, ("", "")), (time, path.parent.name))
    return {env for _, env in last.values()}


def _kept_objects(store: Store, kept_envs: set[str], there: set[str]) -> dict[str, set[str]]:
    """Names of what kept environments consist of, by folder; none at all if the record of one that is there cannot be read.

    Wheels can be fetched again, trees are made from them: a wheel goes when nothing kept was made from it.
    """
    kept: dict[str, set[str]] = {"bytecode": set(), "trees": set(), "wheels": set()}
    for env in sorted(kept_envs):
        records = [read_json(path) for path in sorted(store.receipts(env).glob("env-*.json"))]
        if env in there and (not records or None in records):
            return {}
        for record in filter(None, records):
            for part in record["parts"]:
                kept["wheels"] |= {part["sha256"], part["base_sha256"]}
                for tree in filter(None, (part["tree"], part["donor"])):
                    kept["trees"].add(tree)
                    kept["bytecode"].add(f"{tree}-{record['bytecode_tag']}")
    return kept


def _kept_pythons(store: Store, kept_envs: set[str]) -> set[str]:
    """Paths of the interpreters of kept environments."""
    records = [read_json(path) for env in kept_envs for path in store.receipts(env).glob("env-*.json")]
    return {str(record["python"]["path"]) for record in records if record is not None}


def remove_garbage(store: Store, garbage: Garbage) -> None:
    """Remove it. The caller holds `locks/gc` alone; what an interruption leaves is garbage again.

    Raises:
        OSError: Something cannot be removed.
    """
    for name, number in garbage.generations:
        remove_generation(store, name, number)
    # First out of its place, so that no half of it is ever found there; what is left of it belongs to the next holder of `locks/trash`.
    with store.lock("trash"):
        for path in garbage.paths:
            if path.is_dir() and not path.is_symlink():
                moved = store.root / ".tmp" / f"trash.{path.parent.name}-{path.name}"
                remove_readonly_tree(moved)
                with contextlib.suppress(PermissionError):
                    path.chmod(0o755)
                path.rename(moved)
                remove_readonly_tree(moved)
            else:
                path.unlink(missing_ok=True)
    store.sweep()


def running_environments(store: Store, proc: Path) -> list[tuple[str, int]]:
    """Env id and pid of each process that runs from an environment of the store, as far as this user may see.

    Looked at, for each process: what it has mapped, its working folder, its command line, and the variables that lead to programs and libraries
    (an environment's `python` is a link, so the executable itself lies elsewhere). A process that came through a profile uses what the profile
    links to now; if it may have begun before the last switch, every environment of that profile counts as used.
    """
    spellings = sorted({os.fsencode(store.root.absolute()), os.fsencode(store.root.resolve())})
    root = b"(?:" + b"|".join(map(re.escape, spellings)) + b")"
    direct = re.compile(root + rb"/envs/([a-z2-7]{32})-")
    linked = re.compile(root + rb"/(?:profiles/([^/\x00-\x1f:]+)|generations/[^/\x00-\x1f:]+/\d+)(?![^/\x00-\x1f:])")
    boot_s = _boot_time_s(proc)
    found: set[tuple[str, int]] = set()
    for entry in sorted(proc.iterdir()):
        if not entry.name.isdecimal():
            continue
        runs_from, leads_to = _proc_texts(entry)
        envs = {match[1].decode() for match in direct.finditer(runs_from + leads_to)}
        for match in linked.finditer(runs_from + leads_to):
            target = direct.match(os.fsencode(os.path.realpath(os.fsdecode(match[0]))))
            if target:
                envs.add(target[1].decode())
        for match in linked.finditer(runs_from):
            if match[1] is not None and not _began_after(entry, boot_s, os.fsdecode(match[0])):
                envs |= _environments_named(store, os.fsdecode(match[1]))
        found |= {(env, int(entry.name)) for env in envs}
    return sorted(found)


def _environments_named(store: Store, name: str) -> set[str]:
    return {
        env
        for env, separator, rest in (path.name.partition("-") for path in (store.root / "envs").iterdir())
        if separator and rest == name
    }


def _boot_time_s(proc: Path) -> float:
    """When the machine started, in seconds since the epoch; minus infinity if the kernel does not say: then no process began late for sure."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "stat").read_text(encoding="ascii").splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    return float("-inf")


def _began_after(process: Path, boot_s: float, link: str) -> bool:
    """Whether a process began after a link was made, for sure: the kernel's times are as coarse as `CLOCK_SLACK_S`."""
    try:
        fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        started_s = boot_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22, `starttime`, of proc(5)
        return started_s > os.lstat(link).st_ctime + CLOCK_SLACK_S
    except (OSError, ValueError, IndexError):
        return False


def _proc_texts(process: Path) -> tuple[bytes, bytes]:
    """Texts that name what a process runs from, and what its variables lead to: a shell that could start a program does not run from there."""
    runs_from: list[bytes] = []
    leads_to: list[bytes] = []
    with contextlib.suppress(OSError):
        runs_from.append((process / "maps").read_bytes())
    folder = program = b""
    with contextlib.suppress(OSError):
        folder = os.fsencode(os.readlink(process / "cwd")) + b"/"  # noqa: PTH115 - bytes
    with contextlib.suppress(OSError):
        program = os.fsencode(os.readlink(process / "exe"))  # noqa: PTH115 - bytes
    runs_from += [folder, program]
    with contextlib.suppress(OSError):
        command = (process / "cmdline").read_bytes()
        # The program itself may be named relative to the folder.
        runs_from += [command, os.path.normpath(folder + command.partition(b"\0")[0])]
    with contextlib.suppress(OSError):
        variables = (process / "environ").read_bytes().split(b"\0")
        leads_to = [each for each in variables if each.startswith(_LEADING_VARIABLES)]
    if program.rpartition(b"/")[2].startswith(b"python"):
        # A Python that was started by its bare name found itself in PATH.
        runs_from += leads_to
    return b"\0".join(runs_from) + b"\0", b"\0".join(leads_to)


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
