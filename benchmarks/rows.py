"""The rows of the table: what each measures, how it is prepared, and against which peer.

Preparations are not timed. Both sides run in turn, after one untimed pass of each, so that a change of the machine's pace meets both. Nothing
is deleted between the runs that are timed: on ext4 without a journal, inodes that were freed are passed over for minutes, one by one, and new
folders take ten times longer meanwhile.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.binaries import elf_reader, gpu_code, measuring
from benchmarks.commands import CannotMeasure, Command, MemoryPeak, Usage, run, run_watched
from benchmarks.machine import load_average
from benchmarks.results import Goal, Row, side
from benchmarks.reviews import reviews
from benchmarks.scratch import Scratch, fill
from builder.agent.store import remove_readonly_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

COLD_FREE_BYTES = 24_000_000_000
"""Room that a run of both sides from nothing needs: 3.7 GB of wheels and 9 GB of trees here, 9 GB there, and a margin."""

COLD_INTERVAL_S = 0.25
"""Between two looks at the memory of a run that is timed too: 2 % of a core."""

MEMORY_RUNS = 3
_WARM = "warm: one untimed pass of each side before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How often things are run."""

    runs: int
    cold_runs: int
    """Of what downloads 3.7 GB a side."""

    tell: Callable[[str], None]
    """Where progress goes."""


def noop(scratch: Scratch, settings: Settings) -> list[Row]:
    """A build when nothing changed."""
    fill(scratch)
    venv = scratch.work / "venv-noop"
    if not venv.exists():
        _uv_from_folder(scratch, venv)
    ours = scratch.envspec("build")
    peer = scratch.uv("pip", "sync", "--offline", "--python", venv, scratch.work / "requirements.txt")
    load = load_average()
    taken, peer_taken = _in_turn(settings, [ours], [peer])
    return [
        Row(
            name="noop",
            work="build when nothing changed",
            goal=Goal(kind="seconds", limit=0.10),
            load_before=load,
            page_cache=_WARM,
            envspec=side([ours], taken),
            peer=side([peer], peer_taken),
        )
    ]


def new_env(scratch: Scratch, settings: Settings) -> list[Row]:
    """A build of a new env id where one patch changed, twice: everything but the patched wheel made before, and that one made before too."""
    fill(scratch)
    build = scratch.envspec("build", folder=scratch.patched)
    peer: list[Command] = []
    run(scratch.envspec("build"))
    load = load_average()
    made: list[Usage] = []
    unmade: list[Usage] = []
    peer_taken: list[Usage] = []
    for number in range(settings.runs + 1):  # the first pass is not counted
        settings.tell(f"new environment, run {number} of {settings.runs}")
        env = _edited(scratch, made=False)
        unmade.append(_timed([build]))
        scratch.forget_env(env)
        _check_made(scratch, made=True)
        made.append(_timed([build]))
        scratch.forget_env(env)
        venv = scratch.new_away("venv")
        peer = [scratch.uv_new_venv(venv), scratch.uv_install_from_folder(venv)]
        peer_taken.append(_timed(peer))
    row = Row(
        name="new-env",
        work="build of a new env id, one patch changed; all wheels unpacked and compiled before",
        goal=Goal(kind="ratio", limit=2.5),
        load_before=load,
        page_cache=_WARM,
        envspec=side([build], made[1:]),
        peer=side(peer, peer_taken[1:]),
        notes=(
            "envspec with proof and bytecode, the imports left out; uv with a warm cache, without bytecode, `uv venv` included",
        ),
    )
    also = replace(
        row,
        name="new-env, unpack",
        work="the same, the patched wheel still to be unpacked and compiled",
        envspec=side([build], unmade[1:]),
        notes=("against the same runs of uv, which has its wheels unpacked",),
    )
    return [row, also]


def lock_noop(scratch: Scratch, settings: Settings) -> list[Row]:
    """A lock when nothing changed."""
    fill(scratch)
    ours = scratch.envspec("lock")
    target = scratch.spec.target
    peer = scratch.uv(
        "pip",
        "compile",
        "--quiet",
        "--no-python-downloads",
        "--python",
        scratch.python,
        f"--python-version={scratch.spec.python.version}",
        f"--python-platform={target.platform.removeprefix('linux-')}-manylinux_{target.glibc.replace('.', '_')}",
        "--only-binary=:all:",
        *([f"--exclude-newer={scratch.lock.snapshot}"] if scratch.lock.snapshot else []),
        "--generate-hashes",
        scratch.work / "requirements.in",
        "--output-file",
        scratch.work / "compiled.txt",
    )
    load = load_average()
    taken, peer_taken = _in_turn(settings, [ours], [peer])
    return [
        Row(
            name="lock-noop",
            work="lock when nothing changed",
            goal=Goal(kind="seconds", limit=0.3),
            load_before=load,
            page_cache=_WARM,
            envspec=side([ours], taken),
            peer=side([peer], peer_taken),
            notes=("uv with a warm cache, asking the index what is new, its last answer as the preference",),
        )
    ]


def check_warm(scratch: Scratch, settings: Settings) -> list[Row]:
    """Every check on the lock, all facts measured before."""
    fill(scratch)
    ours = scratch.envspec("check")
    run(ours)  # measures what was not measured yet
    load = load_average()
    taken = [run(ours) for _ in range(settings.runs)]
    return [
        Row(
            name="check",
            work="every check on the lock, the facts of its wheels measured before",
            goal=Goal(kind="seconds", limit=2.0),
            load_before=load,
            page_cache=_WARM,
            envspec=side([ours], taken),
        )
    ]


def why(scratch: Scratch, settings: Settings) -> list[Row]:
    """Who asks for the package that most others ask for; and the lock compared with everything that is known of it."""
    fill(scratch)
    run(scratch.envspec("check"))  # measures what was not measured yet
    venv = scratch.work / "venv-noop"
    if not venv.exists():
        _uv_from_folder(scratch, venv)
    ours = scratch.envspec("why", "typing-extensions")
    peer = scratch.uv("pip", "tree", "--invert", "--package", "typing-extensions", "--python", venv)
    load = load_average()
    taken, peer_taken = _in_turn(settings, [ours], [peer])
    compared = scratch.envspec("lock", "--check")
    run(compared)
    return [
        Row(
            name="why",
            work="why: every chain of requirements to typing-extensions counted",
            goal=Goal(kind="seconds", limit=0.2),
            load_before=load,
            page_cache=_WARM,
            envspec=side([ours], taken),
            peer=side([peer], peer_taken),
            notes=(
                "uv reads an installed environment, envspec the lock; the goal is of wall time, the raw output has processor time too",
            ),
        ),
        Row(
            name="lock-check",
            work="lock --check: every field of the lock worked out again, the facts of its wheels measured before",
            goal=Goal(kind="seconds", limit=2.0),
            load_before=load,
            page_cache=_WARM,
            envspec=side([compared], [run(compared) for _ in range(settings.runs)]),
        ),
    ]


def deep(scratch: Scratch, settings: Settings) -> list[Row]:
    """A hash of every byte of an environment."""
    row = Row(
        name="deep",
        work="verify --deep: every byte hashed again",
        goal=Goal(kind="ratio", limit=1.0),
        page_cache=_WARM,
    )
    if scratch.nix_hash is None:
        return [replace(row, not_measured="there is no nix-hash here", skipped=True)]
    fill(scratch)
    run(scratch.envspec("build"))
    env = scratch.store.env(scratch.lock.env, scratch.lock.name)
    ours = scratch.envspec("verify", "--deep")
    peer = Command(
        shown="nix-hash --type sha256 ENV",
        argv=(os.fspath(scratch.nix_hash), "--type", "sha256", os.fspath(env)),
        environ=scratch.environ,
        cwd=scratch.work,
    )
    load = load_average()
    taken, peer_taken = _in_turn(settings, [ours], [peer])
    return [
        replace(
            row,
            load_before=load,
            envspec=side([ours], taken),
            peer=side([peer], peer_taken),
            notes=("of the same tree, bytecode included, the imports left out",),
        )
    ]


def memory(scratch: Scratch, settings: Settings) -> list[Row]:
    """Peak memory of a build of a new environment, and of a lock that measures every wheel."""
    fill(scratch)
    build = scratch.envspec("build", folder=scratch.patched)
    unlocked = scratch.work / "unlocked"
    lock = scratch.envspec("lock", folder=unlocked)
    rows: list[Row] = []
    run(scratch.envspec("build"))
    load = load_average()
    watched: list[tuple[Usage, MemoryPeak]] = []
    for number in range(min(settings.runs, MEMORY_RUNS)):
        settings.tell(f"memory of a new environment, run {number + 1}")
        env = _edited(scratch, made=False)
        watched.append(run_watched(build))
        scratch.forget_env(env)
    rows.append(
        _memory_row(
            "memory, new-env",
            "memory of build of a new env id, patched wheel to be unpacked",
            300,
            build,
            watched,
            load,
        )
    )
    settings.tell("memory of a lock that measures every wheel")
    scratch.copy_spec(unlocked, with_lock=False)
    scratch.store.facts.rename(scratch.new_away("facts"))
    load = load_average()
    rows.append(
        _memory_row(
            "memory, lock", "memory of lock with nothing measured before", 1500, lock, [run_watched(lock)], load
        )
    )
    return rows


def from_nothing(scratch: Scratch, settings: Settings) -> list[Row]:
    """A build with an empty store against uv with an empty cache, and the memory that it takes."""
    row = Row(
        name="from-nothing",
        work="build from nothing, with download and proof",
        goal=Goal(kind="ratio", limit=1.0),
        page_cache="cold: nothing of either side was there before",
        notes=(
            "from the committed lock, the imports left out; uv with hashes and bytecode, `uv venv` included; the base wheel where we patch",
            f"the memory of both was looked at every {COLD_INTERVAL_S} s; {settings.cold_runs} run(s) of each, envspec first, then in turn",
        ),
    )
    needed = COLD_FREE_BYTES * settings.cold_runs
    if scratch.free_bytes() < needed:
        return [replace(row, not_measured=f"less than {needed / 1e9:.0f} GB free", skipped=True)]
    load = load_average()
    watched: list[tuple[Usage, MemoryPeak]] = []
    peer_watched: list[tuple[Usage, MemoryPeak]] = []

    folders: list[Path] = []
    ours: list[Command] = []
    peer: list[Command] = []
    for number in range(settings.cold_runs):
        settings.tell(f"from nothing, run {number + 1} of {settings.cold_runs}")
        store, cache, venv = (scratch.work / f"cold-{what}-{number}" for what in ("store", "cache", "venv"))
        for folder in (store, cache, venv):
            remove_readonly_tree(folder)  # of an earlier run that was interrupted
        folders += [store, venv, cache]
        ours = [scratch.envspec("build", store=store)]
        peer = [scratch.uv_new_venv(venv, cache=cache), scratch.uv_sync_from_index(venv, cache=cache)]
        if number % 2 == 0:
            watched.append(_watched(ours))
        peer_watched.append(_watched(peer))
        if number % 2 == 1:
            watched.append(_watched(ours))
    for folder in folders:
        remove_readonly_tree(folder)
    row = replace(
        row,
        load_before=load,
        envspec=side(ours, [usage for usage, _ in watched]),
        peer=side(peer, [usage for usage, _ in peer_watched]),
        memory=tuple(peak for _, peak in watched),
        peer_memory=tuple(peak for _, peak in peer_watched),
    )
    of_memory = replace(
        row,
        name="memory, from-nothing",
        work="memory of build from nothing",
        goal=Goal(kind="megabytes", limit=300),
        notes=("of the same runs",),
    )
    return [row, of_memory]


ROWS: dict[str, Callable[[Scratch, Settings], list[Row]]] = {
    "noop": noop,
    "new-env": new_env,
    "lock-noop": lock_noop,
    "check": check_warm,
    "review": reviews,
    "why": why,
    "deep": deep,
    "memory": memory,
    "facts": measuring,
    "gpu-code": gpu_code,
    "elf": elf_reader,
    "from-nothing": from_nothing,
}
"""Name for `--only` -> what measures it, in the order in which they are run."""


def _memory_row(
    name: str,
    work: str,
    limit_mb: float,
    command: Command,
    watched: Sequence[tuple[Usage, MemoryPeak]],
    load: tuple[float, float, float],
) -> Row:
    return Row(
        name=name,
        work=work,
        goal=Goal(kind="megabytes", limit=limit_mb),
        load_before=load,
        page_cache="as it was",
        envspec=side([command], [usage for usage, _ in watched]),
        memory=tuple(peak for _, peak in watched),
    )


def _in_turn(settings: Settings, ours: Sequence[Command], peer: Sequence[Command]) -> tuple[list[Usage], list[Usage]]:
    """Both sides in turn, after one untimed pass of each."""
    taken: list[Usage] = []
    peer_taken: list[Usage] = []
    for number in range(settings.runs + 1):
        settings.tell(f"{ours[0].shown.split(' --spec')[0]}, run {number} of {settings.runs}")
        taken.append(_timed(ours))
        peer_taken.append(_timed(peer))
    return taken[1:], peer_taken[1:]


def _timed(commands: Sequence[Command]) -> Usage:
    """Run commands one after the other, with nothing left to be written to disk from before."""
    os.sync()
    usages = [run(command) for command in commands]
    return _sum(usages)


def _watched(commands: Sequence[Command]) -> tuple[Usage, MemoryPeak]:
    """The same, with a look at memory: the peak is that of the greediest command."""
    os.sync()
    pairs = [run_watched(command, interval_s=COLD_INTERVAL_S) for command in commands]
    return _sum([usage for usage, _ in pairs]), max(
        (peak for _, peak in pairs), key=lambda peak: (peak.tree_pss_bytes, peak.samples)
    )


def _sum(usages: Sequence[Usage]) -> Usage:
    total = usages[0]
    for usage in usages[1:]:
        total += usage
    return total


def _uv_from_folder(scratch: Scratch, venv: Path) -> None:
    run(scratch.uv_new_venv(venv))
    run(scratch.uv_install_from_folder(venv))


def _edited(scratch: Scratch, *, made: bool) -> str:
    """Edit and lock the patch; returns the new env id."""
    scratch.edit_patch()
    _check_made(scratch, made=made)
    return scratch.read_lock(scratch.patched).env


def _check_made(scratch: Scratch, *, made: bool) -> None:
    """See that the preparation left what the row says: the patched tree made or not, and the environment absent."""
    lock = scratch.read_lock(scratch.patched)
    for overlay in lock.overlays:
        if scratch.store.tree(overlay.tree).exists is not made:
            raise CannotMeasure(
                f"the patched tree of {overlay.package} is {'not there' if made else 'there'} before the build"
            )
    if scratch.store.env(lock.env, lock.name).exists():
        raise CannotMeasure("the new environment is there before it is built")
