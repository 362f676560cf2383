"""What the machine refuses a run: a compiler, memory, room on a disk, execution; and what it kept from an earlier one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.diagnosis.registry import rule
from envspec.diagnosis.rules.running import raised_in
from envspec.diagnosis.symptom import Stage, symptom
from envspec.diagnosis.telling import shown_raise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.traced import Raised

_NO_HEADERS = re.compile(r"fatal error: Python\.h: No such file or directory")
_NO_C_COMPILER = re.compile(
    r"Failed to find C compiler|No working C\+\+ compiler|InvalidCxxCompiler|\b(?:gcc|cc|g\+\+|c\+\+|clang): (?:command )?not found"
    r"|No such file or directory: '(?:[\w./-]*-)?(?:gcc|cc|g\+\+|c\+\+|clang)'"
)
_STATIC_TLS = re.compile(
    r"(?P<library>[^\s:'\"]{0,400}/(?P<name>lib[\w.+-]{1,100}\.so[.\d]*)): cannot allocate memory in static TLS block"
)
_NO_EXEC = re.compile(r"failed to map segment from shared object")
_LIMITS = {
    "no room is left on the disk": (
        re.compile(r"No space left on device|\[Errno 28\]"),
        "make room there (`df` says how much), or send caches elsewhere (HF_HOME, TRITON_CACHE_DIR, TMPDIR)",
    ),
    "the user's quota is full": (
        re.compile(r"Disk quota exceeded|\[Errno 122\]"),
        "make room there (`quota`), or send caches elsewhere",
    ),
    "too many files are open": (re.compile(r"Too many open files|\[Errno 24\]"), "raise the limit (`ulimit -n`)"),
    "the memory of the GPU does not suffice": (
        re.compile(
            r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
        ),
        "see with `nvidia-smi` what else uses the GPU, or ask for less: a smaller model, batch or share",
    ),
    "the memory does not suffice": (
        re.compile(
            r"Cannot allocate memory|\[Errno 12\]|DefaultCPUAllocator: can't allocate memory|std::bad_alloc|^MemoryError"
        ),
        "free memory, raise the limit of the container or of the user (`ulimit -v`, cgroup), or ask for less",
    ),
}
"""What is used up -> what is said then, and what helps."""

_IN_A_CACHE = re.compile(
    r"(?P<path>/[^\s:'\"]{0,400}/(?P<cache>torch_extensions|\.triton/cache|\.cache/flashinfer|torchinductor_[\w.-]{1,60}|\.deep_gemm|tvm-ffi)"
    r"/[^\s:'\"]{1,400}\.so): (?P<said>undefined symbol|cannot open shared object file|invalid ELF header|file too short|version `)"
)


@rule("compiler-absent")
def compiler_absent(scene: Scene) -> Iterable[Symptom]:
    """What is compiled when it is first used finds a compiler and the headers of Python.

    Severity: error. Only where a run ended by it.

    Why: triton, inductor and extensions of torch compile a little C for each kernel. On a slim image there is no `gcc`, or the headers
    of Python, which come in a package of their own, are not there.

    Example:
        error: triton 3.6.0 compiles when it is used, and `Python.h` is not there

    How to mend: install the compiler, or the headers, on this machine.
    """
    traced = scene.traced
    if traced is None or not traced.failed:
        return
    for raised in traced.chain:
        text = f"{raised.message} {raised.path}"
        headers, compiler = _NO_HEADERS.search(text), _NO_C_COMPILER.search(text)
        if headers is None and compiler is None:
            continue
        owner = raised_in(scene, raised)
        lacks = "`Python.h`" if headers else "a C compiler"
        minor = scene.observation.python.minor
        package = f"python{minor}-dev" if headers else "gcc (and g++)"
        yield symptom(
            "compiler-absent",
            "error",
            f"{scene.label(owner) if owner else 'the run'} compiles when it is used, and {lacks} is not there",
            packages=[owner] if owner else [],
            stage=Stage.USE,
            evidence=[shown_raise(raised), *([f"it says: {(headers or compiler)[0]}"])],  # type: ignore[index]
            hint=f"install {package} on this machine (Debian and Ubuntu), or use a Python that has its headers"
            if headers
            else f"install {package} on this machine",
        )
        return


@rule("static-tls")
def static_tls(scene: Scene) -> Iterable[Symptom]:
    """Libraries that need thread-local storage from the start are loaded while there is room for it.

    Severity: error. Only where a run ended by it.

    Why: glibc keeps little room for such libraries once a process runs. One that comes late, after torch and others, finds none:
    `libgomp-....so: cannot allocate memory in static TLS block`. Which import fails depends on the order of imports.

    Example:
        error: no room for the thread-local storage of `libgomp-d22c30c5.so.1.0.0` is left: it has to be loaded earlier

    How to mend: import the package that brings the library first, or name the library in LD_PRELOAD.
    """
    for raised in _chain(scene):
        found = _STATIC_TLS.search(raised.message)
        if found:
            owner = raised_in(scene, raised)
            yield symptom(
                "static-tls",
                "error",
                f"no room for the thread-local storage (static TLS) of `{found['name']}` is left: it has to be loaded earlier",
                packages=[owner] if owner else [],
                stage=Stage.IMPORT,
                evidence=[shown_raise(raised)],
                hint=f"import {owner or 'the package that brings it'} before the others, or name `{found['library']}` in LD_PRELOAD",
                sonames=[found["name"]],
            )
            return


@rule("noexec")
def noexec(scene: Scene) -> Iterable[Symptom]:
    """Libraries lie where the system lets them run.

    Severity: error. Only where a run ended by it.

    Why: on a file system that is mounted with `noexec`, as `/tmp` and shared folders often are, files can be read and not mapped as code.
    The file is whole, and `failed to map segment from shared object` reads as if it were not.

    Example:
        error: libraries of the venv may not be run: the file system is mounted with `noexec`, or a policy forbids it

    How to mend: make the venv elsewhere, or mount the file system with `exec`.
    """
    for raised in _chain(scene):
        if _NO_EXEC.search(raised.message):
            yield symptom(
                "noexec",
                "error",
                "libraries of the venv may not be run: the file system is mounted with `noexec`, or a policy (SELinux) forbids it",
                stage=Stage.IMPORT,
                evidence=[shown_raise(raised), f"`findmnt -T {scene.observation.prefix}` says how it is mounted"],
                hint="make the venv on another file system, or mount this one with `exec`",
            )
            return


@rule("machine-limit")
def machine_limit(scene: Scene) -> Iterable[Symptom]:
    """Disk, memory and the rest suffice for the run.

    Severity: error. Only where a run ended by it.

    Why: a full disk ends an import as well as a missing module does, and in any package: that one is not at fault.

    Example:
        error: no room is left on the disk: OSError: [Errno 28] No space left on device

    How to mend: make room, or ask for less.
    """
    for raised in _chain(scene):
        text = (
            f"{raised.type.rpartition('.')[2]} {raised.message}"
            if raised.type.endswith("MemoryError")
            else raised.message
        )
        for what, (pattern, help_) in _LIMITS.items():
            if pattern.search(text) and not _STATIC_TLS.search(text):
                yield symptom(
                    "machine-limit",
                    "error",
                    f"{what}: {shown_raise(raised)}",
                    stage=Stage.USE,
                    evidence=[shown_raise(raised)],
                    hint=help_,
                )
                return


@rule("stale-cache")
def stale_cache(scene: Scene) -> Iterable[Symptom]:
    """What was compiled at an earlier run fits the packages of today.

    Severity: error. Only where a run ended by it.

    Why: torch's extensions, triton, flashinfer and others compile at the first use and keep the result in the user's home. After an upgrade,
    or in another venv, the library of before is loaded into the torch of today.

    Example:
        error: `/var/cache/torch_extensions/py312_cu128/fused/fused.so` was compiled for other packages than these

    How to mend: delete it; it is compiled anew.
    """
    for raised in _chain(scene):
        found = _IN_A_CACHE.search(raised.message)
        if found:
            yield symptom(
                "stale-cache",
                "error",
                f"`{found['path']}` was compiled for other packages than these, and is kept in a cache",
                stage=Stage.IMPORT,
                evidence=[
                    shown_raise(raised),
                    f"it lies in {found['cache']}, where what is compiled at the first use is kept",
                ],
                hint=f"delete `{found['path'].rpartition('/')[0]}`: it is compiled anew",
                path=found["path"],
                paths=[found["path"]],
            )
            return


def _chain(scene: Scene) -> tuple[Raised, ...]:
    return scene.traced.chain if scene.traced is not None and scene.traced.failed else ()
