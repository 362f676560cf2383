"""`uv run python -m benchmarks.diagnose`: every case, the score table, the raw output."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.commands import CannotMeasure
from benchmarks.diagnose import fifth, fourth, further, listed, more, third, third_gpu, third_wheels, wheels
from benchmarks.diagnose.making import PYTHON_MINOR, Maker
from benchmarks.diagnose.running import REPOSITORY, run_case, today
from benchmarks.diagnose.score import Scored, table
from benchmarks.machine import cpu_model, file_system
from builder.agent.interpreter import find_interpreter
from builder.uv import find_uv
from envspec.errors import EnvspecError
from envspec.lock_toml import parse_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.diagnose.case import Case


def main(arguments: Sequence[str]) -> int:
    """Run the chosen cases.

    Returns:
        0 if every diagnosis is right, 1 if one is not, 2 if a case could not be made.
    """
    given = _parser().parse_args(arguments)
    cases = [each for each in _cases(given.kind) if not given.only or each.id in given.only]
    scored: list[Scored] = []
    not_made: dict[str, str] = {}
    with work_folder(given.work) as work:
        maker = make_maker(work, donor=given.env, wheelhouse=given.wheelhouse)
        for case in cases:
            folder = work / "cases" / case.id
            shutil.rmtree(folder, ignore_errors=True)
            try:
                scored.append(run_case(maker, case, folder, peers=not given.no_peers))
            except (CannotMeasure, EnvspecError, OSError) as error:
                not_made[case.id] = str(error).replace(os.fspath(work), "WORK")
                _tell(f"{case.id}: {error}")
            else:
                last = scored[-1]
                _tell(f"{case.id}: {'right' if last.right else '; '.join(last.problems)}")
            if not given.keep:
                shutil.rmtree(folder, ignore_errors=True)
        machine = describe(work)
    print(table(scored))
    for name, reason in not_made.items():
        print(f"{name} could not be made: {reason}")
    if given.out is not None:
        text = json.dumps(result(scored, not_made, machine), indent=1).replace(os.fspath(work), "WORK")
        given.out.write_text(f"{text}\n", encoding="utf-8")
    return 2 if not_made else 0 if all(each.right for each in scored) else 1


def result(scored: Sequence[Scored], not_made: dict[str, str], machine: dict[str, Any]) -> dict[str, Any]:
    """The raw output."""
    return {
        "version": 1,
        "date": today(),
        "machine": machine,
        "right": sum(each.right for each in scored),
        "of": len(scored),
        "cases": [each.to_json() for each in scored],
        "not_made": not_made,
    }


def make_maker(work: Path, *, donor: Path | None, wheelhouse: Path | None) -> Maker:
    """What makes venvs.

    Args:
        work: Where everything lies.
        donor: An environment that envspec built, on the same file system; None to fetch all.
        wheelhouse: A folder with `<sha256>/<file>`; None for none.

    Raises:
        EnvspecError: There is no Python of the minor version, or no uv.
    """
    text = (REPOSITORY / "ddtree.lock").read_text(encoding="utf-8")
    lock = parse_lock(text, input_name="ddtree.lock")
    wheels = None
    if wheelhouse is not None:
        wheels = work / "wheelhouse"
        shutil.rmtree(wheels, ignore_errors=True)
        wheels.mkdir()
        for wheel in wheelhouse.glob("*/*.whl"):
            if "+" not in wheel.name:
                (wheels / wheel.name).symlink_to(wheel)
    return Maker(
        work=work,
        python=Path(find_interpreter(PYTHON_MINOR, environ=os.environ).path),
        uv=Path(find_uv(os.environ).path),
        donor=None if donor is None else donor.resolve(),
        wheels=wheels,
        pins={each.name: each.version for each in lock.packages if "+" not in each.version},
    )


def _cases(kind: str) -> list[Case]:
    cases = [
        *listed.CASES,
        *further.CASES,
        *more.CASES,
        *third.CASES,
        *third_gpu.CASES,
        *wheels.CASES,
        *third_wheels.CASES,
        *fourth.CASES,
        *fifth.CASES,
    ]
    return [each for each in cases if kind in ("all", each.kind)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnose", description="How often is the cause named?")
    parser.add_argument("--only", action="append", default=[], help="only this case; may be given several times")
    parser.add_argument("--kind", choices=["all", "recipe", "wheels"], default="all")
    parser.add_argument(
        "--env", type=Path, help="an environment that envspec built: its packages are linked instead of fetched"
    )
    parser.add_argument("--wheelhouse", type=Path, help="folder with <sha256>/<file>, such as <store>/wheels")
    parser.add_argument(
        "--work", type=lambda text: Path(text).absolute(), help="folder for everything; a temporary one by default"
    )
    parser.add_argument("--keep", action="store_true", help="keep the venvs")
    parser.add_argument("--no-peers", action="store_true", help="ask envspec only")
    parser.add_argument("--out", type=Path, help="file for the raw output")
    return parser


def describe(work: Path) -> dict[str, Any]:
    """What it was run on, without a name or a place."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "file_system": file_system(work),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


@contextlib.contextmanager
def work_folder(given: Path | None) -> Iterator[Path]:
    """The folder for everything: a temporary one if none is given."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="envspec-diagnose-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
