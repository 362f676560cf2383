"""Faults planted in a copy of an environment, one at a time, and whether the probe finds it that ought to.

    python -m benchmarks.verify.faults --env FOLDER --work FOLDER [--base-wheel WHEEL] [--torchvision-wheel WHEEL] [--only NAME] --out FILE

The copy is made of hard links, so it takes seconds; a file that is changed gets an inode of its own, and the environment itself stays as it is.
Before each fault its probes must pass in the copy, else nothing is shown by a failure. Without a GPU, the faults that can be found
there are planted, and the probes run in compile mode; the others are listed as not tried. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PROBES = Path(__file__).resolve().parents[2] / "builder" / "probes"
LIMIT_S = 500
_FATBIN = b"\x50\xed\x55\xba\x01\0\x10\0"
_PTX, _CUBIN, _NO_KIND = 1, 2, 32
_NOWHERE = 37
"""An architecture that no GPU has."""


class NotPlanted(Exception):  # noqa: N818 - it is told, and the next fault goes on
    """A fault cannot be planted here."""


@dataclass(frozen=True)
class Place:
    """The copy, and what faults are made from."""

    root: Path
    site: Path
    work: Path
    base_wheel: Path | None
    torchvision_wheel: Path | None
    compute: str
    """Of the GPU; empty if there is none."""

    environ: dict[str, str]


@dataclass(frozen=True)
class Fault:
    """One fault."""

    name: str
    says: str
    plant: Callable[[Place, contextlib.ExitStack], dict[str, str]]
    """Plants it; what has to be undone goes onto the stack. Gives variables for the probe's environment."""

    probe: str
    """Which has to fail; `record` for the digests of RECORD."""

    cases: tuple[str, ...] = ()
    """Which cases of it are run; none for all."""

    without_gpu: bool = False
    """Whether it can be found on a machine without a GPU."""


@dataclass
class Outcome:
    """What became of a fault."""

    fault: str
    says: str
    probe: str
    caught: bool | None = None
    """None: not tried."""

    why: str = ""
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)


# Planting


def replaced(path: Path, content: bytes, undo: contextlib.ExitStack) -> None:
    """Give a path other content in an inode of its own, until the stack is unwound."""
    kept = path.with_name(f".kept-{path.name}")
    mode = path.stat().st_mode
    path.rename(kept)
    undo.callback(kept.replace, path)
    path.write_bytes(content)
    path.chmod(mode)
    # Bytecode of a built environment is not checked against its source.
    for bytecode in (path.parent / "__pycache__").glob(f"{path.stem}.cpython-*.pyc") if path.suffix == ".py" else ():
        moved_away(bytecode, undo)


def moved_away(path: Path, undo: contextlib.ExitStack) -> None:
    """Take a file or folder away until the stack is unwound."""
    kept = path.with_name(f".kept-{path.name}")
    path.rename(kept)

    def back() -> None:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        kept.replace(path)

    undo.callback(back)


def other_torchvision(place: Place, undo: contextlib.ExitStack) -> dict[str, str]:
    """The package as it was built for another CUDA: from its wheel, or by naming another runtime in the library."""
    if place.torchvision_wheel is not None:
        with zipfile.ZipFile(place.torchvision_wheel) as wheel:
            for folder in ("torchvision", "torchvision.libs"):
                if (place.site / folder).exists():
                    moved_away(place.site / folder, undo)
            wheel.extractall(
                place.site,
                [name for name in wheel.namelist() if name.startswith(("torchvision/", "torchvision.libs/"))],
            )
        return {}
    library = place.site / "torchvision" / "_C.so"
    content = library.read_bytes()
    named = re.search(rb"libcudart(?:\.[0-9a-f]{8})?\.so\.(\d\d)\0", content)
    if named is None:
        raise NotPlanted("torchvision/_C.so names no CUDA runtime")
    other = b"%02d" % (int(named[1]) - 1)
    replaced(library, content[: named.start(1)] + other + content[named.end(1) :], undo)
    return {}


def foreign_runtime(place: Place, undo: contextlib.ExitStack) -> dict[str, str]:
    """A CUDA runtime of somebody else's, first on LD_LIBRARY_PATH."""
    own = sorted(place.site.glob("nvidia/*/lib/libcudart.so.*")) or sorted(
        place.site.glob("nvidia/*/*/lib/libcudart.so.*")
    )
    if not own:
        raise NotPlanted("the environment has no libcudart of its own")
    folder = place.work / "foreign"
    folder.mkdir()
    undo.callback(shutil.rmtree, folder)
    shutil.copy(own[0], folder)
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(folder), place.environ.get("LD_LIBRARY_PATH"))))}


_OLD_PTXAS = """#!/bin/sh
case "$*" in
*--version*) echo 'Cuda compilation tools, release 11.7, V11.7.99'; exit 0 ;;
esac
echo "ptxas fatal   : Value is not defined for option 'gpu-name'" >&2
exit 255
"""


def old_ptxas(place: Place, undo: contextlib.ExitStack) -> dict[str, str]:
    """The assembler of a CUDA that does not know the GPU yet."""
    programs = sorted(place.site.glob("triton/backends/nvidia/bin/ptxas*"))
    if not programs:
        raise NotPlanted("Triton brings no ptxas")
    for program in programs:
        replaced(program, _OLD_PTXAS.encode(), undo)
    return {"TRITON_CACHE_DIR": str(place.work / "cache-of-old-ptxas")}


def strange_ptxas(place: Place, undo: contextlib.ExitStack) -> dict[str, str]:
    """A ptxas from outside, which a variable of the host names."""
    programs = sorted(place.site.glob("triton/backends/nvidia/bin/ptxas*"))
    if not programs:
        raise NotPlanted("Triton brings no ptxas")
    folder = place.work / "strange"
    folder.mkdir()
    undo.callback(shutil.rmtree, folder)
    for program in programs:
        shutil.copy(program, folder)
    return {
        "TRITON_PTXAS_PATH": str(folder / "ptxas"),
        "TRITON_PTXAS_BLACKWELL_PATH": str(folder / "ptxas-blackwell"),
    }


def without_code(place: Place, undo: contextlib.ExitStack) -> dict[str, str]:
    """sgl_kernel's library without its code for this GPU; that for others is left."""
    folder = "sm90" if place.compute == "9.0" else "sm100"
    for library in (place.site / "sgl_kernel" / folder).glob("common_ops*.so"):
        content, count = without_major(library.read_bytes(), int(place.compute.partition(".")[0]))
        if not count:
            raise NotPlanted(f"no code for this GPU was found in {library.name}")
        replaced(library, content, undo)
        return {}
    raise NotPlanted(f"there is no sgl_kernel/{folder}/common_ops")


def without_major(content: bytes, major: int) -> tuple[bytes, int]:
    """A library whose code for GPUs of a major version, and PTX, is made useless, and how many pieces that were.

    Layout as in `builder/fatbin.py`: a header of 16 bytes with the size of what follows, then entries with their kind at 0, their size at 4 and
    8, and the architecture at 28. The driver looks at the label; cuobjdump looks into the code.
    """
    out = bytearray(content)
    count, at = 0, content.find(_FATBIN)
    while at >= 0:
        end = at + 16 + struct.unpack_from("<Q", content, at + 8)[0]
        entry = at + 16
        while entry + 64 <= min(end, len(content)):
            kind, _, header, payload = struct.unpack_from("<HHIQ", content, entry)
            if kind not in (_PTX, _CUBIN) or not 64 <= header <= 4096 or entry + header + payload > end:
                break
            if kind == _PTX or struct.unpack_from("<I", content, entry + 28)[0] // 10 == major:
                struct.pack_into("<H", out, entry, _NO_KIND)
                struct.pack_into("<I", out, entry + 28, _NOWHERE)
                out[entry + header : entry + header + min(64, payload)] = bytes(min(64, payload))
                count += 1
            entry += header + payload
        at = content.find(_FATBIN, max(at + 1, min(end, len(content))))
    return bytes(out), count


def flipped_bit(place: Place, undo: contextlib.ExitStack) -> dict[str, str]:
    """One bit in the data of a shared object."""
    library = place.site / "torch" / "lib" / "libc10_cuda.so"
    content = bytearray(library.read_bytes())
    place_of_text = content.find(b"CUDA error: ")
    if place_of_text < 0:
        raise NotPlanted("the text to flip a bit in was not found")
    content[place_of_text] ^= 1
    replaced(library, bytes(content), undo)
    return {}


def reverted_patch(place: Place, undo: contextlib.ExitStack) -> dict[str, str]:
    """A patched file as the published wheel has it: DDTREE is unknown again."""
    if place.base_wheel is None:
        raise NotPlanted("no --base-wheel of SGLang is given")
    name = "sglang/srt/speculative/spec_info.py"
    with zipfile.ZipFile(place.base_wheel) as wheel:
        content = wheel.read(name)
    if content == (place.site / name).read_bytes():
        raise NotPlanted(f"{name} is the published one already")
    replaced(place.site / name, content, undo)
    return {}


def mask_bug(place: Place, undo: contextlib.ExitStack) -> dict[str, str]:
    """A row of a tree's mask sees one row too many: its elder neighbour."""
    path = place.site / "sglang" / "srt" / "speculative" / "ddtree_utils.py"
    text = path.read_text(encoding="utf-8")
    right = "        cells[row] = 1\n"
    if text.count(right) != 1:
        raise NotPlanted("ddtree_utils.py is not as it was when this was written")
    replaced(path, text.replace(right, f"{right}        cells[max(row - 1, 0)] = 1\n").encode(), undo)
    return {}


FAULTS = (
    Fault("torchvision-other-cuda", "torchvision of another CUDA line", other_torchvision, "torchvision"),
    Fault(
        "torchvision-other-cuda-import",
        "the same, found by importing it",
        other_torchvision,
        "libraries",
        ("import-torch", "import-torchvision"),
        without_gpu=True,
    ),
    Fault(
        "foreign-cudart",
        "a foreign libcudart first on LD_LIBRARY_PATH",
        foreign_runtime,
        "libraries",
        ("search-path",),
        without_gpu=True,
    ),
    Fault("old-ptxas", "a ptxas that does not know the GPU", old_ptxas, "triton", without_gpu=True),
    Fault("strange-ptxas", "a ptxas from outside the environment", strange_ptxas, "triton", without_gpu=True),
    Fault("no-code-for-gpu", "a kernel library without code for the GPU", without_code, "sgl_kernel"),
    Fault(
        "flipped-bit", "one flipped bit in a shared object's data", flipped_bit, "record", ("torch",), without_gpu=True
    ),
    Fault("reverted-patch", "a patched file reverted", reverted_patch, "record", ("sglang",), without_gpu=True),
    Fault("reverted-patch-engine", "the same, found by running it", reverted_patch, "engine", ("DDTREE-1",)),
    Fault("mask-bug", "a mask bug in ddtree_utils.py", mask_bug, "ddtree", ("mask-1x15", "mask-3x63")),
)


# Finding


def changed_files(site: Path, dist: str) -> dict[str, str]:
    """`pass`, or `fail` for each file of a distribution that is not what its RECORD says."""
    records = sorted(site.glob(f"{dist}-*.dist-info/RECORD"))
    found: dict[str, str] = {}
    for line in records[0].read_text(encoding="utf-8").splitlines() if records else ():
        name, _, rest = line.rpartition(",")[0].rpartition(",")
        path = site / name
        if not rest.startswith("sha256=") or not name.endswith((".so", ".py")) or not path.is_file():
            continue
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != rest.removeprefix("sha256="):
            found[name] = "fail: its sha256 is not the one in RECORD"
    return found or {dist: "pass"}


def run_probe(place: Place, name: str, cases: Sequence[str], more: dict[str, str]) -> dict[str, str]:
    """Results by case; a process that ends without saying so gives one named `end`."""
    folder = place.work / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    request = {
        "version": 1,
        "set": "quick",
        "mode": "run" if place.compute or name == "libraries" else "compile",
        "gpu": None,
        "compute": [place.compute] if place.compute else ["9.0", "12.0"],
        "seed": time.time_ns(),
        "prefix": str(place.root),
        "site": str(place.site),
        "toolkit": "13.0",
        "cases": list(cases) or None,
    }
    try:
        done = subprocess.run(
            [str(place.root / "bin" / "python"), "-X", "faulthandler", "-B", "-s", str(PROBES / f"{name}.py")],
            input=json.dumps(request) + "\n",
            capture_output=True,
            text=True,
            cwd=folder,
            env={**place.environ, **more},
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"end": f"fail: no end in {LIMIT_S} s"}
    results: dict[str, str] = {}
    ended = False
    for line in done.stdout.splitlines():
        record = json.loads(line)
        ended = ended or bool(record.get("end"))
        if "case" in record:
            results[record["case"]] = (
                f"{record['result']}{': ' if record.get('reason') else ''}{record.get('reason', '')}"
            )
    if not ended:
        results["end"] = f"fail: it ended with {done.returncode}: {done.stderr[-400:]}"
    return results


def find(place: Place, fault: Fault, more: dict[str, str]) -> dict[str, str]:
    """What the probe of a fault says."""
    if fault.probe == "record":
        return changed_files(place.site, fault.cases[0])
    return run_probe(place, fault.probe, fault.cases, more)


def try_fault(place: Place, fault: Fault) -> Outcome:
    """Whether a fault is found, and was not there before."""
    outcome = Outcome(fault=fault.name, says=fault.says, probe=fault.probe)
    if not place.compute and not fault.without_gpu:
        outcome.why = "no GPU"
        return outcome
    outcome.before = find(place, fault, {})
    with contextlib.ExitStack() as undo:
        try:
            more = fault.plant(place, undo)
        except NotPlanted as why:
            outcome.why = str(why)
            return outcome
        outcome.after = find(place, fault, more)
    clean = not _failures(outcome.before)
    failures = _failures(outcome.after)
    outcome.caught = clean and bool(failures)
    outcome.why = "; ".join(failures[:2]) if clean else f"it fails without the fault: {_failures(outcome.before)[0]}"
    return outcome


def _failures(results: dict[str, str]) -> list[str]:
    return [f"{case}: {said.removeprefix('fail: ')}" for case, said in results.items() if said.startswith("fail")]


def copy_of(environment: Path, to: Path) -> None:
    """A copy whose files are hard links."""
    if to.exists():
        return
    shutil.copytree(environment, to, symlinks=True, copy_function=os.link)
    for folder, _, _ in os.walk(to):
        Path(folder).chmod(0o755)


def compute_of_gpu() -> str:
    """Compute capability of the first GPU; empty if there is none."""
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],  # noqa: S607 - the one in PATH
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except OSError:
        return ""
    return said.stdout.split()[0] if said.returncode == 0 and said.stdout.split() else ""


def run_faults(place: Place, only: Sequence[str]) -> Iterator[Outcome]:
    """Every fault that is asked for, one after the other."""
    for fault in FAULTS:
        if not only or fault.name in only:
            yield try_fault(place, fault)


def main(arguments: Sequence[str]) -> int:
    """Plants and finds.

    Returns:
        0 if every fault that was planted was found, 1 if one was not.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, required=True, help="the environment, with bin/python")
    parser.add_argument(
        "--work", type=Path, required=True, help="where the copy goes: the same file system, for hard links"
    )
    parser.add_argument("--base-wheel", type=Path, help="SGLang's wheel as it was published")
    parser.add_argument("--torchvision-wheel", type=Path, help="a torchvision for another CUDA")
    parser.add_argument("--only", action="append", default=[], choices=[fault.name for fault in FAULTS])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    root = given.work.resolve() / "copy"
    copy_of(given.env.resolve(), root)
    sites = sorted(root.glob("lib/python3*/site-packages"))
    place = Place(
        root=root,
        site=sites[0],
        work=given.work.resolve(),
        base_wheel=given.base_wheel,
        torchvision_wheel=given.torchvision_wheel,
        compute=compute_of_gpu(),
        environ=dict(os.environ),
    )
    outcomes = []
    for outcome in run_faults(place, given.only):
        outcomes.append(outcome)
        told = {True: "caught", False: "NOT CAUGHT", None: "not tried"}[outcome.caught]
        print(f"{told:10}  {outcome.fault}  by {outcome.probe}: {outcome.why[:300]}", flush=True)
        given.out.write_text(json.dumps([vars(each) for each in outcomes], indent=1) + "\n", encoding="utf-8")
    return int(any(outcome.caught is False for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
