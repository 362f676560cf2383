"""The rows about measuring binaries: the facts of a whole environment, the GPU code of its largest library, the ELF reader.

All of them need nothing but the wheels of the committed lock: with `--wheelhouse` the store is not filled for them. They take their turns as the
rows of `benchmarks.rows` do.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.commands import CannotMeasure, Command, run, run_watched
from benchmarks.machine import load_average
from benchmarks.results import Goal, Row, side
from benchmarks.scratch import NAME, fill
from builder import process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.commands import Usage
    from benchmarks.rows import Settings
    from benchmarks.scratch import Scratch

REPOSITORY = Path(__file__).parents[1].resolve()
CUOBJDUMP = "nvidia-cuda-cuobjdump>=13.2,<14"
LARGEST = "torch/lib/libtorch_cuda.so"
LIBRARIES = (LARGEST, "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so")
_WARM = "warm: one untimed pass of each side before"


def measuring(scratch: Scratch, settings: Settings) -> list[Row]:
    """The facts of every wheel with none in the cache, and the memory that it takes."""
    wheelhouse = _wheelhouse(scratch)
    load = load_average()
    taken: list[Usage] = []
    for number in range(settings.runs + 1):  # the first pass is not counted
        settings.tell(f"facts of every wheel, run {number} of {settings.runs}")
        os.sync()
        taken.append(run(_measure(scratch, wheelhouse)))
    settings.tell("memory of the same")
    command = _measure(scratch, wheelhouse)
    watched = [run_watched(command)]
    row = Row(
        name="facts",
        work="sha256 and facts of every wheel, nothing measured before",
        goal=Goal(kind="seconds", limit=30),
        load_before=load,
        page_cache=_WARM,
        envspec=side([command], taken[1:]),
        notes=("two processes, as lock has on two cores; the facts are written to the disk",),
    )
    of_memory = replace(
        row,
        name="memory, facts",
        work="memory of the same",
        goal=Goal(kind="megabytes", limit=1500),
        envspec=side([command], [usage for usage, _ in watched]),
        memory=tuple(peak for _, peak in watched),
        notes=("in a run of its own",),
    )
    return [row, of_memory]


def gpu_code(scratch: Scratch, settings: Settings) -> list[Row]:
    """The list of GPU code of the largest library against cuobjdump's."""
    (library,) = _extracted(scratch, [LARGEST])
    ours = _reading(scratch, "code", [library])
    peer = Command(
        shown=f"cuobjdump --list-elf --list-ptx {library.name}",
        argv=(os.fspath(_cuobjdump(scratch)), "--list-elf", "--list-ptx", os.fspath(library)),
        environ=scratch.environ,
        cwd=scratch.work,
    )
    counted = sum(int(line.rpartition(" ")[2]) for line in _said(ours).splitlines())
    listed = sum(line.startswith(("ELF file", "PTX file")) for line in _said(peer).splitlines())
    if counted != listed:
        raise CannotMeasure(f"{counted} pieces of code were found, cuobjdump lists {listed}")
    return [
        _in_turn(
            settings,
            ours,
            peer,
            Row(
                name="gpu-code",
                work=f"list of the {counted} pieces of GPU code of {library.name}",
                goal=Goal(kind="ratio", limit=1 / 50),
                notes=("both from the library as a file; envspec with the start of Python",),
            ),
        )
    ]


def elf_reader(scratch: Scratch, settings: Settings) -> list[Row]:
    """Dynamic section, versions and symbols of the largest libraries against pyelftools."""
    libraries = _extracted(scratch, LIBRARIES)
    ours, peer = _reading(scratch, "elf", libraries), _reading(scratch, "pyelftools", libraries)
    said, peer_said = _said(ours), _said(peer)
    if said != peer_said:
        raise CannotMeasure(f"envspec found {said.strip()}, pyelftools {peer_said.strip()}")
    return [
        _in_turn(
            settings,
            ours,
            peer,
            Row(
                name="elf",
                work=f"what the linker reads of {len(libraries)} libraries of torch: {said.strip()}",
                goal=Goal(kind="ratio", limit=0.2),
                notes=("both with the start of Python",),
            ),
        )
    ]


def _in_turn(settings: Settings, ours: Command, peer: Command, row: Row) -> Row:
    load = load_average()
    taken: list[Usage] = []
    peer_taken: list[Usage] = []
    for number in range(settings.runs + 1):
        settings.tell(f"{row.name}, run {number} of {settings.runs}")
        os.sync()
        taken.append(run(ours))
        os.sync()
        peer_taken.append(run(peer))
    return replace(
        row,
        load_before=load,
        page_cache=_WARM,
        envspec=side([ours], taken[1:]),
        peer=side([peer], peer_taken[1:]),
    )


def _measure(scratch: Scratch, wheelhouse: Path) -> Command:
    """A command that measures all wheels into a new folder."""
    facts = scratch.new_away("facts")
    lock = scratch.committed / f"{NAME}.lock"
    return _reading(scratch, "measure", [wheelhouse, lock, facts], shown=f"measure WHEELS {lock.name} FACTS")


def _reading(scratch: Scratch, work: str, paths: Sequence[Path], *, shown: str = "") -> Command:
    """A command of `benchmarks.reading`."""
    return Command(
        shown=f"python -m benchmarks.reading {shown or ' '.join([work, *(path.name for path in paths)])}",
        argv=(sys.executable, "-m", "benchmarks.reading", work, *(os.fspath(path) for path in paths)),
        environ={**scratch.environ, "PYTHONPATH": os.fspath(REPOSITORY)},
        cwd=scratch.work,
    )


def _wheelhouse(scratch: Scratch) -> Path:
    """A folder with every wheel of the lock as `<sha256>/<file>`: the given one, else that of the store."""
    given = scratch.wheelhouse
    if given is not None and all((given / each.sha256 / each.file).is_file() for each in scratch.lock.packages):
        return given
    fill(scratch)
    return scratch.store.wheels


def _extracted(scratch: Scratch, members: Sequence[str]) -> list[Path]:
    """Libraries of torch's wheel as files."""
    (package,) = (each for each in scratch.lock.packages if each.name == "torch")
    wheel = _wheelhouse(scratch) / package.sha256 / package.file
    folder = scratch.work / "binaries"
    folder.mkdir(exist_ok=True)
    found = []
    for member in members:
        found.append(folder / member.rpartition("/")[2])
        if not found[-1].exists():
            partial = found[-1].with_suffix(".part")
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            partial.rename(found[-1])
    return found


def _cuobjdump(scratch: Scratch) -> Path:
    """The peer, from the wheel that carries it."""
    folder = scratch.work / "cuobjdump"
    found = list(folder.rglob("bin/cuobjdump"))
    if not found:
        run(scratch.uv("pip", "install", "--quiet", "--python", sys.executable, "--target", folder, CUOBJDUMP))
        found = list(folder.rglob("bin/cuobjdump"))
        found[0].chmod(0o755)
    return found[0]


def _said(command: Command) -> str:
    done = process.run(command.argv, env=command.environ, cwd=command.cwd)
    if done.returncode != 0:
        raise CannotMeasure(f"`{command.shown}` ended with {done.returncode}:\n{done.stderr}")
    return done.stdout
