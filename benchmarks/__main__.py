"""`uv run python -m benchmarks`: measure, print the table, write the raw output."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.commands import CannotMeasure
from benchmarks.machine import describe_machine, machine_label
from benchmarks.results import Row, print_table, result_json
from benchmarks.rows import ROWS, Settings
from benchmarks.scratch import prepare, remove_work
from envspec.errors import EnvspecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REPOSITORY = Path(__file__).parents[1].resolve()
RESULTS = Path(__file__).resolve().parent / "results"


def main(arguments: Sequence[str]) -> int:
    """Measure the chosen rows.

    Returns:
        0 if every goal is met, 1 if one is missed, 2 if something could not be measured.
    """
    given = _parser().parse_args(arguments)
    chosen = [name for name in ROWS if name in given.only or not given.only]
    settings = Settings(runs=given.runs, cold_runs=given.runs_cold, tell=_tell)
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    rows: list[Row] = []
    with _work_folder(given.work) as work:
        _tell(f"preparing in {work}")
        try:
            scratch = prepare(work, repository=REPOSITORY, wheelhouse=given.wheelhouse)
        except (CannotMeasure, EnvspecError) as error:
            _tell(f"error: {error}")
            return 2
        machine = describe_machine(
            work,
            envspec=scratch.envspec_path,
            python=scratch.python,
            uv=scratch.uv_path,
            nix_hash=scratch.nix_hash,
        )
        for name in chosen:
            _tell(f"row {name}")
            try:
                rows += ROWS[name](scratch, settings)
            except (CannotMeasure, EnvspecError, OSError) as error:
                _tell(f"error: {error}")
                text = (str(error) or repr(error)).replace(os.fspath(work), "WORK")
                rows.append(Row(name=name, work="", goal=None, not_measured=text))
    print_table(rows, title=f"{machine['cpu']}, {machine['cores']} cores, {machine['file_system']}, {machine['uv']}")
    out: Path = given.out or RESULTS / f"{date}-{given.label or machine_label(machine)}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    result = result_json(rows, machine=machine, date=date, runs=given.runs, cold_runs=given.runs_cold)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    _tell(f"raw output in {out}")
    verdicts = {row.verdict for row in rows}
    return 2 if "failed" in verdicts else 1 if "missed" in verdicts else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure envspec beside its peers.")
    parser.add_argument(
        "--only", action="append", choices=list(ROWS), default=[], help="only this row; may be given several times"
    )
    parser.add_argument("--runs", type=_count, default=5, help="timed runs of each side; the median counts (default 5)")
    parser.add_argument(
        "--runs-cold", type=_count, default=1, help="runs of what downloads 3.7 GB for each side (default 1)"
    )
    parser.add_argument(
        "--work",
        type=lambda text: Path(text).absolute(),
        help="folder for everything, kept and used again (45 GB with the row from-nothing, else 25 GB); a temporary one by default",
    )
    parser.add_argument(
        "--wheelhouse",
        type=lambda text: Path(text).absolute(),
        help="folder with <sha256>/<file>, such as <store>/wheels: saves the download for every row but from-nothing",
    )
    parser.add_argument("--out", type=Path, help="file for the raw output")
    parser.add_argument("--label", help="name of the machine in the default name of that file")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


@contextlib.contextmanager
def _work_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="envspec-benchmarks-"))
    try:
        yield folder
    finally:
        remove_work(folder)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
