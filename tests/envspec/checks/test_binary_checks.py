"""`foreign-machine`, `damaged-binary`, `absolute-runpath` and `executable-stack`; the public report C31."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envspec.checks import run_checks
from tests.support.facts import Row, fails, make_binary, make_closure, make_facts, make_spec, passes, waiver
from tests.support.recorded import recorded_facts

if TYPE_CHECKING:
    from envspec.binaries import Binary
    from envspec.facts import WheelFacts


def demo(*binaries: Binary) -> WheelFacts:
    return make_facts("demo", binaries=binaries)


HELPERS = [
    make_binary("demo/tools/linux-x64/helper", kind="executable"),
    make_binary("demo/tools/linux-arm64/helper", kind="executable", machine="aarch64"),
    make_binary("demo/attach_linux_amd64.so"),
    make_binary("demo/attach_linux_x86.so", machine="i386"),
]
TWO_PATHS = [
    make_binary("demo/a.so", runpath="/opt/a"),
    make_binary("demo/b.so", runpath="/opt/b"),
]
STACK = make_binary("demo/_asm.so", executable_stack=True)

ROWS = (
    passes("foreign-machine", "binaries for the target", make_closure([demo(make_binary("demo/_C.so"))])),
    passes(
        "foreign-machine",
        "code that no processor runs",
        make_closure(
            [
                demo(
                    make_binary("demo/k.cubin", machine="cuda", kind="executable"),
                    make_binary("demo/k.hsaco", machine="machine-224"),
                    make_binary("demo/k.bpf.o", machine="machine-247", kind="relocatable"),
                )
            ]
        ),
    ),
    passes(
        "foreign-machine",
        "a binary of which nothing was read",
        make_closure([demo(make_binary("demo/_C.so", machine="", damage="cut off"))]),
    ),
    fails(
        "foreign-machine",
        "a binary for another machine",
        make_closure([demo(make_binary("demo/_C.so", machine="aarch64"))]),
        "error",
        "demo 1.0 has 1 binary for another machine than x86_64: `demo/_C.so`",
    ),
    fails(
        "foreign-machine",
        "the target's machine is what counts",
        make_closure([demo(make_binary("demo/_C.so"))], make_spec(platform="linux-aarch64")),
        "error",
        "demo 1.0 has 1 binary for another machine than aarch64: `demo/_C.so`",
    ),
    fails(
        "foreign-machine",
        "one file for each machine",
        make_closure([demo(*HELPERS)]),
        "info",
        "demo 1.0 has 2 binaries for other machines than x86_64, which their places say: "
        "`demo/attach_linux_x86.so` and `demo/tools/linux-arm64/helper`",
    ),
    fails(
        "foreign-machine",
        "a stub in a folder that is named after its machine",
        make_closure([demo(make_binary("demo/stubs/aarch64-unknown-linux-gnu/libstub.so", machine="aarch64"))]),
        "info",
        "demo 1.0 has 1 binary for another machine than x86_64, which its place says: "
        "`demo/stubs/aarch64-unknown-linux-gnu/libstub.so`",
    ),
    fails(
        "foreign-machine",
        "an extension whose own name says another machine",
        make_closure([demo(make_binary("demo/_core.cpython-312-aarch64-linux-gnu.so", machine="aarch64"))]),
        "error",
    ),
    passes("damaged-binary", "a sound binary", make_closure([demo(make_binary("demo/_C.so"))])),
    fails(
        "damaged-binary",
        "a binary that contradicts itself",
        make_closure([demo(make_binary("demo/_C.so", damage="64 bytes at offset 9 lie outside the file"))]),
        "warning",
        "demo 1.0 has 1 binary that cannot be read: `demo/_C.so`",
    ),
    passes(
        "absolute-runpath",
        "places beside the binary",
        make_closure(
            [
                demo(
                    make_binary("demo/a.so", rpath="$ORIGIN:${ORIGIN}/../lib:$ORIGIN/"),
                    make_binary("demo/b.so", runpath=""),
                    make_binary("demo/c.so"),
                )
            ]
        ),
    ),
    passes(
        "absolute-runpath",
        "all of them waived",
        make_closure([demo(*TWO_PATHS)], make_spec(waivers=[waiver("absolute-runpath", "demo", path="demo/*.so")])),
    ),
    fails(
        "absolute-runpath",
        "places of a build machine, one finding for the package",
        make_closure([demo(*TWO_PATHS)]),
        "warning",
        "demo 1.0 has 2 binaries that search for libraries outside of the environment: `demo/a.so` and `demo/b.so`",
    ),
    fails(
        "absolute-runpath",
        "one of them waived",
        make_closure([demo(*TWO_PATHS)], make_spec(waivers=[waiver("absolute-runpath", "demo", path="demo/a.so")])),
        "warning",
        "demo 1.0 has 1 binary that searches for libraries outside of the environment: `demo/b.so`",
    ),
    *(
        fails(
            "absolute-runpath",
            f"the entry {entry!r}",
            make_closure([demo(make_binary("demo/a.so", rpath=entry))]),
            "warning",
        )
        for entry in ("$ORIGIN:", "lib", "$ORIGINAL/lib", "$LIB", "$ORIGIN:/opt/lib", "x/$ORIGIN")
    ),
    passes("executable-stack", "a stack as it should be", make_closure([demo(make_binary("demo/_C.so"))])),
    fails(
        "executable-stack",
        "an executable stack",
        make_closure([demo(STACK)]),
        "warning",
        "demo 1.0 has 1 binary that asks for an executable stack: `demo/_asm.so`",
    ),
    fails(
        "executable-stack",
        "a library with one, which newer systems refuse to load",
        make_closure([demo(STACK)], make_spec(glibc="2.41")),
        "error",
    ),
    fails(
        "executable-stack",
        "a program with one, which newer systems run",
        make_closure([demo(make_binary("bin/run", program=True, executable_stack=True))], make_spec(glibc="2.41")),
        "warning",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_check_finds_what_the_table_says(row: Row) -> None:
    row.verify()


@pytest.mark.parametrize(
    ("wheel", "path", "evidence"),
    [
        ("torchvision-0.29.1", "torchvision/_C_stable.so", "RPATH /__w/_temp/conda_environment_"),
        ("torchaudio-2.11.0", "torchaudio/lib/_torchaudio.abi3.so", "RPATH /__w/_temp/conda_environment_"),
        (
            "nvidia-nvshmem-cu13-3.4.5",
            "nvidia/nvshmem/lib/nvshmem_bootstrap_mpi.so.3",
            "RUNPATH /data/tmp/openmpi_install/lib",
        ),
    ],
)
def test_c31_search_path_of_a_build_machine_is_named(wheel: str, path: str, evidence: str) -> None:
    findings = run_checks(make_closure([recorded_facts(wheel)])).findings
    [finding] = [each for each in findings if each.check == "absolute-runpath"]
    assert finding.severity == "warning"
    assert any(line.startswith(f"{path}: {evidence}") for line in finding.evidence)


def test_c31_waiver_of_a_search_path_is_for_its_path() -> None:
    spec = make_spec(waivers=[waiver("absolute-runpath", "torchaudio", path="torchaudio/lib/*.abi3.so")])
    verdict = run_checks(make_closure([recorded_facts("torchaudio-2.11.0")], spec))
    assert [finding.check for finding, _ in verdict.waived] == ["absolute-runpath"]
    assert "absolute-runpath" not in {finding.check for finding in verdict.findings}
