"""A file on a disk gives the facts that the wheel's member gives that it was, whichever process reads it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.agent import survey_files
from builder.agent.survey import look_at_venv
from builder.cubin_notes import toolkit_release
from builder.measure import measure_wheel
from builder.observing import observe
from builder.progress import SilentReporter
from tests.support.fatbins import Code, cubin, fatbin
from tests.support.shared_objects import needs_gcc, shared_object
from tests.support.tiny_elf import Wanted, tiny_library
from tests.support.venvs import SITE, make_venv
from tests.support.wheels import make_wheel

if TYPE_CHECKING:
    from envspec.binaries import BinaryFacts
    from envspec.facts import WheelFacts

WHEELHOUSE = os.environ.get("ENVSPEC_TEST_WHEELHOUSE", "")
EM_CUDA = 190


def unpacked(wheel: Path, venv: Path) -> Path:
    """A wheel without `.data` as an installer lays it out."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(venv / SITE)
    return venv


def facts_of(wheel: Path) -> WheelFacts:
    return measure_wheel(wheel, filename=wheel.name, sha256="0" * 64, python="3.12")


def observed(venv: Path) -> BinaryFacts:
    (distribution,) = observe(os.fspath(venv), remember=False).distributions
    return distribution.binaries


FILES: dict[str, bytes | str] = {
    "demo/version.py": "__version__ = '1.0'\ncuda: str = '13.0'\nbad = open('x')\n",
    "demo/deep/version.py": "__version__ = 'not at the root'\n",
    "demo/include/cudaTypedefs.h": "PFN_cuInit_v2000 PFN_cuMemAlloc_v3020 PFN_cuMemAlloc_v12040\n",
    "demo/libtiny.so.1": tiny_library(
        soname="libtiny.so.1",
        needed=["libc.so.6"],
        runpath="$ORIGIN",
        exports=["f", "g@V1"],
        undefined=[Wanted("h"), Wanted("weak", weak=True)],
    ),
    "demo/foreign.so": tiny_library(machine="aarch64"),
    "demo/cut.so": tiny_library(soname="x")[:100],
    "demo/kernels/k_sm_100f.cubin": cubin("sm_100f"),
    "demo/kernels/k_sm_90.cubin": cubin("sm_90", release="12.8.93"),
    "demo/text.so": "not a library\n",
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path, "demo", "1.0", FILES)


def test_files_give_the_facts_of_their_wheel(wheel: Path, tmp_path: Path) -> None:
    facts = facts_of(wheel)
    assert len(facts.binaries.binaries) == 3
    assert (len(facts.binaries.cubins), facts.binaries.releases) == (2, ("12.8.93", "13.0.88"))
    assert facts.binaries.labels
    assert facts.binaries.driver_functions
    assert observed(unpacked(wheel, make_venv(tmp_path / "venv"))) == facts.binaries


@needs_gcc
def test_gpu_code_of_every_compression_is_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = fatbin(
        Code("sm_90", release="12.8.93"),
        Code("sm_100f", release="13.0.88", compression="zstd"),
        Code("sm_120", release="13.1.9", compression="zstd"),
        Code("sm_80", compression="lz4"),
        "compute_120",
    )
    wheel = make_wheel(
        tmp_path,
        "demo",
        "1.0",
        {"demo/gpu.so": shared_object("int f(void) { return 1; }", sections={".nv_fatbin": content})},
    )
    facts = facts_of(wheel)
    (binary,) = facts.binaries.binaries
    assert binary.gpu is not None
    assert binary.gpu.releases == ("12.8.93", "13.0.88", "13.1.9")
    venv = unpacked(wheel, make_venv(tmp_path / "venv"))
    assert observed(venv) == facts.binaries
    monkeypatch.setattr(survey_files, "MAPPED_BYTES", 0)  # as a large one is
    assert observed(venv) == facts.binaries


def test_other_processes_read_what_this_one_reads(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = unpacked(wheel, make_venv(tmp_path / "venv"))
    alone = observe(os.fspath(venv), remember=False)
    monkeypatch.setattr(survey_files, "FEW_BYTES", 0)
    monkeypatch.setattr(survey_files, "BATCH_FILES", 3)
    assert observe(os.fspath(venv), remember=False) == alone


def test_cubins_that_nobody_can_inflate_here_are_handed_on(tmp_path: Path) -> None:
    content = cubin("sm_100", release="13.0.88")
    (tmp_path / "venv").mkdir()
    survey = look_at_venv(os.fspath(make_venv(tmp_path / "venv/x")), os.environ, SilentReporter())
    assert survey.packed == {}
    assert toolkit_release(content) == "13.0.88"


def test_header_that_says_cuda_and_is_none_is_still_only_counted(tmp_path: Path) -> None:
    head = bytearray(tiny_library())
    head[18:20] = struct.pack("<H", EM_CUDA)
    wheel = make_wheel(tmp_path, "demo", "1.0", {"demo/x": bytes(head)})
    facts = facts_of(wheel)
    assert facts.binaries.cubins
    assert observed(unpacked(wheel, make_venv(tmp_path / "venv"))) == facts.binaries


@pytest.mark.real
@pytest.mark.skipif(not WHEELHOUSE, reason="ENVSPEC_TEST_WHEELHOUSE is not set")
def test_real_files_give_the_facts_of_their_wheel(tmp_path: Path) -> None:
    """A package with libraries of its own, an assembler, cubins and labels."""
    (wheel,) = Path(WHEELHOUSE).glob("*/triton-3.6.0-cp312-*.whl")
    facts = facts_of(wheel)
    assert facts.binaries.assemblers
    assert observed(unpacked(wheel, make_venv(tmp_path / "venv"))) == facts.binaries


def test_code_of_the_agent_reads_binaries_on_the_oldest_python() -> None:
    """It imports nothing that CPython 3.10 lacks, Zstandard least of all."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import builder.agent.survey; print([n for n in sys.modules if 'zstd' in n])"
    root = Path(__file__).resolve().parents[3]
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_too_many_texts_are_hashed_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing a text is a thousand times slower than hashing it."""
    monkeypatch.setattr(survey_files, "MOST_TEXT_BYTES", 30)
    files = {f"demo{number}/version.py": "__version__ = '1.0'\n" for number in range(5)}
    venv = unpacked(make_wheel(tmp_path, "demo", "1.0", files), make_venv(tmp_path / "venv"))
    (distribution,) = observe(os.fspath(venv), remember=False).distributions
    assert len(distribution.binaries.labels) == 1
    assert all(file.sha256 for file in distribution.files)
    monkeypatch.setattr(survey_files, "FEW_FILES", 0)  # other processes
    assert observe(os.fspath(venv), remember=False).distributions == (distribution,)
