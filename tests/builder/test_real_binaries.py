"""The binaries of the committed environment, judged by cuobjdump and pyelftools.

`ENVSPEC_TEST_WHEELHOUSE=<store>/wheels uv run pytest -m real tests/builder/test_real_binaries.py`: two minutes, 3 GB of temporary disk, and a
download of cuobjdump (0.3 MB).
"""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tomllib

from builder import process
from builder.agent.archive import WheelArchive
from builder.binary_facts import LOADABLE_GPU_SECTION
from builder.elf import read_elf_file, read_sections
from builder.fatbin import read_fatbins
from builder.inspect_binaries import BinaryInspector
from builder.uv import find_uv
from envspec.binaries import joined_names
from tests.support.elf_judge import as_judged, judged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.agent.archive import Member
    from envspec.binaries import Binary

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
CUOBJDUMP = "nvidia-cuda-cuobjdump>=13.2,<14"
LIBRARIES = [
    ("sglang-kernel", "_mscclpp.cpython-310-x86_64-linux-gnu.so"),
    ("sglang-kernel", "lib/mscclpp_nccl.so"),
    ("sglang-kernel", "sgl_kernel/flash_ops.abi3.so"),
    ("sglang-kernel", "sgl_kernel/flashmla_ops.abi3.so"),
    ("sglang-kernel", "sgl_kernel/sm100/common_ops.abi3.so"),
    ("sglang-kernel", "sgl_kernel/sm90/common_ops.abi3.so"),
    ("sglang-kernel", "sgl_kernel/spatial_ops.abi3.so"),
    ("torch", "torch/lib/libtorch_cuda.so"),
    ("torch", "torch/lib/libtorch_cuda_linalg.so"),
    ("torch", "torch/lib/libtorch_nvshmem.so"),
    ("torchao", "torchao/_C_cutlass_90a.abi3.so"),
    ("torchao", "torchao/_C_mxfp8.cpython-310-x86_64-linux-gnu.so"),
    ("torchaudio", "torchaudio/lib/libtorchaudio.abi3.so"),
    ("torchaudio", "torchaudio/lib/torchaudio_prefixctc.abi3.so"),
    ("torchvision", "torchvision/_C.so"),
    ("nvidia-cublas", "nvidia/cu13/lib/libcublas.so.13"),
    ("nvidia-cublas", "nvidia/cu13/lib/libcublasLt.so.13"),
    ("nvidia-cudnn-cu13", "nvidia/cudnn/lib/libcudnn_ops.so.9"),
    ("nvidia-cusparselt-cu13", "nvidia/cusparselt/lib/libcusparseLt.so.0"),
    ("nvidia-nccl-cu13", "nvidia/nccl/lib/libnccl.so.2"),
    ("nvidia-nvshmem-cu13", "nvidia/nvshmem/lib/libnvshmem_host.so.3"),
]
"""Every kind of code that the environment has: a, f, PTX, zstd or not, one fatbin or thousands."""


@pytest.fixture(scope="module")
def wheels() -> dict[str, Path]:
    """The wheels of the committed lock, by package."""
    wheelhouse = os.environ.get("ENVSPEC_TEST_WHEELHOUSE")
    if not wheelhouse:
        pytest.skip("ENVSPEC_TEST_WHEELHOUSE does not name a folder of <sha256>/<file>")
    packages = tomllib.loads((ROOT / "ddtree.lock").read_text(encoding="utf-8"))["package"]
    return {package["name"]: Path(wheelhouse) / package["sha256"] / package["file"] for package in packages}


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuobjdump")
    uv = find_uv(os.environ).path
    done = process.run(
        [str(uv), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder), CUOBJDUMP]
    )
    assert done.returncode == 0, f"{CUOBJDUMP} cannot be installed"
    (program,) = folder.rglob("bin/cuobjdump")
    program.chmod(0o755)
    return program


def members_of(wheels: dict[str, Path], package: str) -> tuple[Path, tuple[Member, ...]]:
    wheel = wheels[package]
    if not wheel.is_file():
        pytest.skip(f"the wheelhouse has no {wheel.name}")
    with WheelArchive(wheel) as archive:
        return wheel, archive.members


def extracted(wheel: Path, member: Member, path: Path) -> Binary | None:
    """Write a member to a file while the inspector watches it; None if it is no binary."""
    inspector = BinaryInspector("3.12")
    with WheelArchive(wheel) as archive, path.open("wb") as file:
        for chunk in inspector.watch(member, member.name, archive.chunks(member)):
            file.write(chunk)
    binaries = inspector.finish(wheel).binaries
    return binaries[0] if binaries else None


def codes_of(path: Path) -> tuple[Counter[str], Counter[frozenset[str]]]:
    """What the whole file has: entries by code, and fatbins by their set of codes."""
    entries: Counter[str] = Counter()
    sets: Counter[frozenset[str]] = Counter()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for name, offset, size in read_sections(content):
            if name == LOADABLE_GPU_SECTION:
                for each in read_fatbins(content, offset, size):
                    entries.update(entry.code for entry in each)
                    sets[frozenset(entry.code for entry in each)] += 1
    return entries, sets


def codes_by_cuobjdump(program: Path, path: Path) -> Counter[str]:
    done = process.run([str(program), "--list-elf", "--list-ptx", str(path)])
    assert done.returncode == 0, done.stderr
    found: Counter[str] = Counter()
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"(ELF|PTX) file +\d+: .*\.sm_(\w+)\.(?:cubin|ptx)", line)
        assert match is not None, line
        found[f"{'sm' if match[1] == 'ELF' else 'compute'}_{match[2]}"] += 1
    return found


def without_family(codes: Counter[str]) -> Counter[str]:
    """As cuobjdump 13.5 names them: it leaves the `f` of a cubin away."""
    found: Counter[str] = Counter()
    for code, number in codes.items():
        found[code.removesuffix("f") if code.startswith("sm_") else code] += number
    return found


@pytest.mark.parametrize(("package", "name"), LIBRARIES, ids=[name.rpartition("/")[2] for _, name in LIBRARIES])
def test_code_of_a_library_is_what_cuobjdump_lists(
    wheels: dict[str, Path], cuobjdump: Path, tmp_path: Path, package: str, name: str
) -> None:
    wheel, members = members_of(wheels, package)
    (member,) = (member for member in members if member.name == name)
    path = tmp_path / "library.so"
    binary = extracted(wheel, member, path)
    try:
        assert binary is not None
        assert binary.gpu is not None
        assert binary.damage == ""
        entries, sets = codes_of(path)
        assert without_family(entries) == codes_by_cuobjdump(cuobjdump, path)
        # What was measured as the file streamed by, without its payloads, is the same.
        assert {frozenset(codes): number for codes, number in binary.gpu.fatbins} == sets
        assert binary.gpu.releases
    finally:
        path.unlink()


def libraries(wheels: dict[str, Path], package: str, folder: Path) -> Iterator[tuple[str, Path, Binary]]:
    """Every binary of a wheel: its name, a file with it that is gone afterwards, and what was measured."""
    wheel, members = members_of(wheels, package)
    path = folder / "library.so"
    for member in members:
        if ".so" in member.name or "/bin/" in member.name:
            binary = extracted(wheel, member, path)
            if binary is not None:
                yield member.name, path, binary
            path.unlink()


@pytest.mark.parametrize(("package", "least"), [("torch", 15), ("sglang-kernel", 12), ("torchvision", 5)])
def test_libraries_are_read_as_pyelftools_reads_them(
    wheels: dict[str, Path], tmp_path: Path, package: str, least: int
) -> None:
    compared = 0
    for name, path, binary in libraries(wheels, package, tmp_path):
        facts = read_elf_file(path, symbols=True)
        assert facts is not None
        with path.open("rb") as file:
            expected = judged(file)
        assert as_judged(facts) == expected, name
        # What was measured as the file streamed by is the same.
        assert (binary.needed, binary.soname) == (tuple(expected.needed), expected.soname or ""), name
        assert (binary.rpath, binary.runpath) == (expected.rpath, expected.runpath), name
        assert binary.exports == joined_names(frozenset(expected.exported)), name
        assert {(*reference,) for reference in binary.undefined} == set(expected.undefined), name
        compared += 1
    assert compared >= least


def test_only_a_library_with_code_for_a_device_linker_is_read_twice(wheels: dict[str, Path]) -> None:
    """The second reading is for files that hide something. `libtorch_nvshmem` does: `__nv_relfatbin` has smaller cubins than what is loaded."""
    again = []
    for package in ("torch", "sglang-kernel", "nvidia-cublas", "triton", "nvidia-cufft"):
        wheel, members = members_of(wheels, package)
        inspector = BinaryInspector("3.12")
        with WheelArchive(wheel) as archive:
            for member in members:
                for _ in inspector.watch(member, member.name, archive.chunks(member)):
                    pass
        again += [member.name for member, _ in inspector._again]
    assert again == ["torch/lib/libtorch_nvshmem.so"]
