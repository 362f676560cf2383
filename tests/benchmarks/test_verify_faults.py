"""Faults are planted in a copy, found by digests where no kernel runs, and leave nothing behind."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import struct
from typing import TYPE_CHECKING

import pytest

from benchmarks.verify import faults

if TYPE_CHECKING:
    from pathlib import Path

UTILS = "def seen(rows, row):\n    for row in rows:\n        cells[row] = 1\n"


def record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A folder like an environment, with the files that faults touch."""
    site = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    files = {
        "torch/lib/libc10_cuda.so": b"\x7fELF data CUDA error: %s more data",
        "torchvision/_C.so": b"\x7fELF\0libcudart.faf08d9a.so.13\0libc.so.6\0",
        "triton/backends/nvidia/bin/ptxas": b"\x7fELF ptxas",
        "triton/backends/nvidia/bin/ptxas-blackwell": b"\x7fELF newer",
        "nvidia/cu13/lib/libcudart.so.13": b"\x7fELF runtime",
        "sglang/srt/speculative/ddtree_utils.py": UTILS.encode(),
        "sglang/srt/speculative/__pycache__/ddtree_utils.cpython-312.pyc": b"code",
    }
    for name, content in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o444)
    for dist in ("torch", "sglang"):
        info = site / f"{dist}-1.0.dist-info"
        info.mkdir()
        own = {
            name: content
            for name, content in files.items()
            if name.startswith(f"{dist}/") and "__pycache__" not in name
        }
        (info / "RECORD").write_text("".join(record_line(*item) for item in own.items()), encoding="utf-8")
    return tmp_path / "env"


def place_of(root: Path, work: Path, compute: str = "") -> faults.Place:
    work.mkdir(exist_ok=True)
    return faults.Place(
        root=root,
        site=root / "lib" / "python3.12" / "site-packages",
        work=work,
        base_wheel=None,
        torchvision_wheel=None,
        compute=compute,
        environ={"PATH": os.defpath},
    )


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    """Content and mode of every file."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode)
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    "name", ["torchvision-other-cuda", "foreign-cudart", "old-ptxas", "strange-ptxas", "flipped-bit", "mask-bug"]
)
def test_a_fault_changes_the_copy_alone_and_is_undone(environment: Path, tmp_path: Path, name: str) -> None:
    fault = next(each for each in faults.FAULTS if each.name == name)
    before = contents(environment)
    copy = tmp_path / "copy"
    faults.copy_of(environment, copy)
    with contextlib.ExitStack() as undo:
        more = fault.plant(place_of(copy, tmp_path / "work"), undo)
        assert more or contents(copy) != before
        assert contents(environment) == before
    assert contents(copy) == before
    assert contents(environment) == before
    assert list((tmp_path / "work").iterdir()) == []


def test_a_flipped_bit_is_found_by_the_digest_of_its_file(environment: Path, tmp_path: Path) -> None:
    fault = next(each for each in faults.FAULTS if each.name == "flipped-bit")
    outcome = faults.try_fault(place_of(environment, tmp_path / "work"), fault)
    assert outcome.caught is True
    assert outcome.why == "torch/lib/libc10_cuda.so: its sha256 is not the one in RECORD"
    assert outcome.before == {"torch": "pass"}


def test_a_fault_that_was_there_before_shows_nothing(environment: Path, tmp_path: Path) -> None:
    library = environment / "lib/python3.12/site-packages/torch/lib/libc10_cuda.so"
    library.chmod(0o644)
    library.write_bytes(b"\x7fELF other CUDA error: data")
    fault = next(each for each in faults.FAULTS if each.name == "flipped-bit")
    outcome = faults.try_fault(place_of(environment, tmp_path / "work"), fault)
    assert outcome.caught is False
    assert outcome.why.startswith("it fails without the fault: ")


def test_a_source_that_is_changed_loses_its_bytecode(environment: Path, tmp_path: Path) -> None:
    """Bytecode of a built environment is not checked against its source, so the change would have no effect."""
    place = place_of(environment, tmp_path / "work")
    bytecode = place.site / "sglang/srt/speculative/__pycache__/ddtree_utils.cpython-312.pyc"
    with contextlib.ExitStack() as undo:
        faults.mask_bug(place, undo)
        assert not bytecode.exists()
    assert bytecode.read_bytes() == b"code"


def test_what_needs_a_gpu_or_a_wheel_is_told_as_not_tried(environment: Path, tmp_path: Path) -> None:
    place = place_of(environment, tmp_path / "work")
    outcomes = {outcome.fault: outcome for outcome in faults.run_faults(place, ["no-code-for-gpu", "reverted-patch"])}
    assert outcomes["no-code-for-gpu"].caught is None
    assert outcomes["no-code-for-gpu"].why == "no GPU"
    assert outcomes["reverted-patch"].caught is None
    assert outcomes["reverted-patch"].why == "no --base-wheel of SGLang is given"


def fatbin(*entries: tuple[int, int]) -> bytes:
    """A fatbin of entries with kind and architecture, each with 80 bytes of code."""
    body = b""
    for kind, architecture in entries:
        header = bytearray(64)
        struct.pack_into("<HHIQ", header, 0, kind, 0, 64, 80)
        struct.pack_into("<I", header, 28, architecture)
        body += bytes(header) + b"\x7fELF" + b"c" * 76
    return b"\x50\xed\x55\xba\x01\0\x10\0" + struct.pack("<Q", len(body)) + body


def test_only_the_code_for_one_gpu_and_ptx_are_made_useless() -> None:
    content = b"head" * 4 + fatbin((2, 80), (2, 90), (1, 90), (2, 120)) + b"\0" * 8 + fatbin((2, 90)) + b"tail"
    out, count = faults.without_major(content, 9)
    assert count == 3
    assert len(out) == len(content)
    assert out.count(b"\x7fELF") == 2
    assert out.startswith(b"head" * 4)
    assert out.endswith(b"tail")
    assert faults.without_major(content, 7)[1] == 1  # PTX fits every GPU
