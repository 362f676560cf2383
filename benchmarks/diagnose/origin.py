"""The case that this project began with, in full: the committed environment, in which files were replaced by hand.

    uv run python -m benchmarks.diagnose.origin --env <store>/profiles/ddtree --wheelhouse <store>/wheels --speed --out FILE

torchvision is replaced by 0.24.1, which is built for CUDA 12.8; five files of SGLang by patched ones; pybase64 is there in one variant
and not in the other; in a third only files of torchvision were copied. Each is looked at here and on a host over ssh (as root, where
openssh-server is installed). `--speed` measures how long a look takes too, with warm and with cold caches, beside the import that fails.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import csv
import hashlib
import json
import os
import shutil
import statistics
import sys
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.commands import CannotMeasure, Command, run, run_watched
from benchmarks.diagnose.__main__ import describe, make_maker, work_folder
from benchmarks.diagnose.case import Built, Case, ids
from benchmarks.diagnose.listed import MISMATCH
from benchmarks.diagnose.making import SITE, replace, site, uninstall
from benchmarks.diagnose.running import diagnose, today, user_environ
from benchmarks.diagnose.score import judge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.commands import Usage
    from benchmarks.diagnose.making import Maker

MODULE = "sglang"
EDITED = 5


def make_origin(maker: Maker, folder: Path, *, pybase64: bool, only_files: bool = False) -> Built:
    """The venv: packages are hard links, what changes is put in their place.

    Args:
        maker: With a donor.
        folder: Where it goes.
        pybase64: Whether it is there.
        only_files: Whether torchvision's metadata stays that of 0.26.0, as where files were copied.

    Raises:
        CannotMeasure: There is no donor.
    """
    if maker.donor is None:
        raise CannotMeasure("this case needs an environment that envspec built: `--env`")
    prefix = maker.venv(folder / "venv")
    maker.link(prefix, *maker.names(), deps=False)
    patched = {
        path: _hash(maker.donor / SITE / path) for path in _recorded(maker.donor, "sglang") if path.endswith(".py")
    }
    uninstall(prefix, "sglang")
    maker.install(prefix, "sglang==0.5.11", deps=False)
    there = _recorded(prefix, "sglang")
    edits = [path for path, digest in sorted(patched.items()) if path in there and there[path] != digest][:EDITED]
    if len(edits) < EDITED:
        raise CannotMeasure(f"only {len(edits)} files of SGLang differ from the patched ones")
    for path in edits:
        replace(site(prefix) / path, (maker.donor / SITE / path).read_bytes())
    if only_files:
        other = maker.venv(folder / "other")
        maker.install(other, "torchvision==0.24.1", deps=False)
        for name in ("torchvision", "torchvision.libs"):
            shutil.rmtree(site(prefix) / name)
            shutil.copytree(site(other) / name, site(prefix) / name)
    else:
        uninstall(prefix, "torchvision")
        maker.install(prefix, "torchvision==0.24.1", deps=False)
    if not pybase64:
        uninstall(prefix, "pybase64")
    return Built(prefix=prefix, library="torchvision/_C.so")


def edited_files(prefix: Path) -> list[str]:
    """The files of SGLang that are not those of its RECORD, relative to site-packages."""
    return [
        path
        for path, digest in sorted(_recorded(prefix, "sglang").items())
        if path.endswith(".py") and digest != _hash(site(prefix) / path)
    ]


def _hash(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


def _recorded(prefix: Path, name: str) -> dict[str, str]:
    (folder,) = (prefix / SITE).glob(f"{name}-*.dist-info")
    with (folder / "RECORD").open(encoding="utf-8", newline="") as file:
        return {row[0]: row[1].removeprefix("sha256=") for row in csv.reader(file) if row}


_ONE = Case(
    id="O1",
    title="the origin, pybase64 is there",
    kind="wheels",
    checks=ids(MISMATCH),
    packages=ids("torchvision"),
    build=lambda maker, folder: make_origin(maker, folder, pybase64=True),
    run=MODULE,
    not_causes=ids("pybase64"),
    remark="5 files",
)
CASES = [
    _ONE,
    changed(
        _ONE,
        id="O2",
        title="the origin, pybase64 is not there",
        build=lambda maker, folder: make_origin(maker, folder, pybase64=False),
        not_causes=ids(),
        second=(ids("requires-dist", "module-missing"), ids("pybase64")),
    ),
    changed(
        _ONE,
        id="O3",
        title="the origin, only files of torchvision copied",
        build=lambda maker, folder: make_origin(maker, folder, pybase64=True, only_files=True),
        checks=ids("cuda-major-mismatch", "version-inside"),
    ),
]


def main(arguments: Sequence[str]) -> int:
    """Look at all variants, here and on a host.

    Returns:
        0 if all is as expected, 1 if not, 2 if something could not be made.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.diagnose.origin", description="The case this began with."
    )
    parser.add_argument("--env", type=Path, required=True, help="the committed environment, as envspec built it")
    parser.add_argument("--wheelhouse", type=Path, help="folder with <sha256>/<file>")
    parser.add_argument("--work", type=lambda text: Path(text).absolute(), help="folder, on the file system of --env")
    parser.add_argument("--no-host", action="store_true", help="only here")
    parser.add_argument("--speed", action="store_true", help="measure time and memory too")
    parser.add_argument("--runs", type=int, default=3, help="of each side (default 3)")
    parser.add_argument("--out", type=Path, help="file for the raw output")
    given = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    speed: list[dict[str, Any]] = []
    try:
        with work_folder(given.work) as work:
            maker = make_maker(work, donor=given.env, wheelhouse=given.wheelhouse)
            for case in CASES:
                folder = work / "origin" / case.id
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                built = case.build(maker, folder)
                environ = user_environ(folder, built.environ)
                edited = edited_files(built.prefix)
                rows.append(_look(case, built, environ, edited, "here", []))
                if not given.no_host:
                    rows.append(_on_a_host(maker, case, built, environ, edited))
                if given.speed and case is CASES[0]:
                    speed = measure(built.prefix, environ, folder / "home", given.runs)
            machine = describe(work)
    except CannotMeasure as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print(
            f"{row['case']:3} {row['where']:5} {'right' if not row['problems'] else 'WRONG: ' + '; '.join(row['problems'])}"
        )
        print("".join(f"      {rank}. {text}\n" for rank, text in enumerate(row["causes"], 1)), end="")
    for each in speed:
        took = f"{each['median_s']:7.2f} s  {each['user_and_system_s']:7.2f} s of processor"
        print(f"{each['row']:28} {took}  {each['peak_mb'] or '':>5}  {each['goal']}")
    if given.out is not None:
        value = {"version": 1, "date": today(), "machine": machine, "variants": rows, "speed": speed}
        given.out.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["problems"] for row in rows) else 0


def _look(
    case: Case, built: Built, environ: Mapping[str, str], edited: list[str], where: str, options: list[str]
) -> dict[str, Any]:
    told = diagnose(built.prefix, case.run, environ, built.prefix.parent / "home", *options)
    problems = [*judge(case, told)]
    said = " ".join([*told["remarks"], *(json.dumps(each) for each in told["causes"])])
    problems += [f"nothing is said about the edit of `{path}`" for path in edited if path not in said]
    blamed = [
        each["check"] for each in told["causes"] if "sglang" in each["packages"][:1] and each["severity"] == "error"
    ]
    if blamed:
        problems.append(f"sglang is blamed: {', '.join(blamed)}")
    return {
        "case": case.id,
        "title": case.title,
        "where": where,
        "run_ends_with": [each["message"] for each in (told["run"] or {}).get("chain", ())][-1:],
        "causes": [
            f"{each['severity']}: {each['check']} [{', '.join(each['packages'])}]: {each['message']}"
            for each in told["causes"]
        ],
        "fixes": [each["fix"] for each in told["causes"]],
        "problems": problems,
    }


def _on_a_host(maker: Maker, case: Case, built: Built, environ: Mapping[str, str], edited: list[str]) -> dict[str, Any]:
    from tests.support.fleet import Fleet, why_not  # noqa: PLC0415 - only where a host is asked for

    if why_not():
        return {
            "case": case.id,
            "title": case.title,
            "where": "host",
            "causes": [],
            "problems": [f"not tried: {why_not()}"],
        }
    with Fleet(1, pythons=[maker.python.resolve().parents[1]]) as fleet:
        there = {**environ, "ENVSPEC_SSH_CONFIG": os.fspath(fleet.ssh_config)}
        return _look(case, built, there, edited, "host", ["--host", fleet.hosts[0].name])


def measure(prefix: Path, environ: Mapping[str, str], cwd: Path, runs: int) -> list[dict[str, Any]]:
    """How long a look takes, and the import that fails; in turn, in one run.

    Args:
        prefix: The venv.
        environ: Of the user.
        cwd: Where the user stands.
        runs: Of each.
    """
    envspec = Path(sys.executable).with_name("envspec")
    look = Command(
        shown="envspec diagnose VENV --json --offline",
        argv=(os.fspath(envspec), "diagnose", os.fspath(prefix), "--json", "--offline", "--quiet"),
        environ=environ, cwd=cwd, codes=(0, 1),
    )  # fmt: skip
    fails = Command(
        shown=f"python -c 'import {MODULE}'",
        argv=(os.fspath(prefix / "bin/python"), "-c", f"import {MODULE}"),
        environ=environ,
        cwd=cwd,
        codes=(1,),
    )
    memory = Path(environ["HOME"]) / ".cache/envspec"
    warm: list[Usage] = []
    after_change: list[Usage] = []
    imports: list[Usage] = []
    cold: list[Usage] = []
    first: list[Usage] = []
    run(fails)  # writes its bytecode, as an ordinary import does
    run(look)
    run(look)  # what it was made of has been quiet for long enough now
    stray = site(prefix) / MODULE / "note.txt"
    for _ in range(runs):
        warm.append(run(look))
        imports.append(run(fails))
        stray.write_text("x\n", encoding="utf-8")
        after_change.append(run(look))
        stray.unlink()
    for _ in range(min(runs, 2)):
        shutil.rmtree(memory, ignore_errors=True)
        first.append(run(look))
        shutil.rmtree(memory, ignore_errors=True)
        drop_pages(prefix)
        cold.append(run(look))
    shutil.rmtree(memory, ignore_errors=True)
    _, peak = run_watched(look)
    _, warm_peak = run_watched(look)
    ratio = statistics.median(each.seconds for each in imports) / statistics.median(each.seconds for each in warm)
    busy = statistics.median(map(_busy, imports)) / statistics.median(map(_busy, warm))
    rows = [
        _row("warm, nothing changed", warm, "<= 3 s", look, warm_peak.tree_pss_bytes),
        _row(
            "the failing import, warm",
            imports,
            f"{ratio:.1f} times the look ({busy:.1f} by processor time), goal >= 2",
            fails,
            0,
        ),
        _row("warm, one file added", after_change, "<= 3 s", look, 0),
        _row("nothing remembered", first, "", look, peak.tree_pss_bytes),
        _row("nothing remembered, disk", cold, "<= 40 s; pages dropped with posix_fadvise", look, 0),
    ]
    return [{**each, "load": os.getloadavg()} for each in rows]


def _busy(usage: Usage) -> float:
    return usage.user_s + usage.system_s


def _row(name: str, runs: Sequence[Usage], goal: str, command: Command, peak: int) -> dict[str, Any]:
    return {
        "row": name,
        "goal": goal,
        "command": command.shown,
        "median_s": round(statistics.median(each.seconds for each in runs), 3),
        "user_and_system_s": round(statistics.median(map(_busy, runs)), 3),
        "seconds": [round(each.seconds, 3) for each in runs],
        "processor_s": [round(_busy(each), 3) for each in runs],
        "peak_mb": round(peak / 1e6) if peak else None,
    }


def drop_pages(prefix: Path) -> None:
    """Let the kernel forget the content of every file of a venv; other programs keep theirs."""
    for folder, _, files in os.walk(prefix):
        for name in files:
            with contextlib.suppress(OSError):
                descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)  # noqa: PTH118 - there are 57,000
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
