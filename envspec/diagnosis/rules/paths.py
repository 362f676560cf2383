"""What a process inherits: variables that put other libraries, compilers and drivers before those of the venv."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.cuda import TOOLKIT_LIBRARY, is_torch_library
from envspec.diagnosis.registry import rule
from envspec.diagnosis.symptom import Stage, symptom
from envspec.diagnosis.telling import shown_raise
from envspec.host import BASE_LIBRARIES, DRIVER_LIBRARIES
from envspec.wording import counted, examples, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom
    from envspec.facts import Severity
    from envspec.traced import Raised

_CUDA_IN_PATH = re.compile(r"cuda-(\d{2})(?:\.(\d+))?(?=/|$)")
_OTHER_DRIVERS: tuple[tuple[re.Pattern[str], str, Severity, str], ...] = (
    (
        re.compile(r"/stubs/[^/]*$"),
        "the stub for linking",
        "warning",
        "a toolkit has stubs for linking on machines without a driver; no GPU is reached through them",
    ),
    (
        re.compile(r"/compat/[^/]*$"),
        "the libraries for forward compatibility (compat)",
        "info",
        "they work on GPUs for data centres, and with drivers that are older than they",
    ),
)
_REFUSED = re.compile(r"object '([^']+)' from LD_PRELOAD cannot be preloaded")
_NO_COMPILER = re.compile(
    r"CUDA_HOME environment variable is not set|[Cc]ould not find (?:the )?nvcc|nvcc: (?:command )?not found|No such file[^\n]{0,300}\bnvcc\b"
    r"|'nvcc'"
)
_DRIVER = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")


@rule("library-path")
def library_path(scene: Scene) -> Iterable[Symptom]:
    """The libraries that are loaded are those of the venv and of the system.

    Of CUDA and torch those of the venv are meant, of glibc and GCC (`libstdc++.so.6`) those of the system, with which wheels are
    built to run.

    Severity: warning where a variable could bring in others, or a run has mapped one from outside; error if that run failed.

    Why: the linker looks into LD_LIBRARY_PATH before it looks where a library with a RUNPATH says, and loads LD_PRELOAD before
    anything else. A toolkit under `/usr/local/cuda` that such a variable names takes the place of the one that the packages were
    built with: another release of cuBLAS or NCCL, undefined symbols, wrong numbers. An old `libstdc++.so.6` of a conda
    environment does the same: `version GLIBCXX_3.4.30 not found`.

    Example:
        warning: LD_LIBRARY_PATH puts 2 libraries before those of the venv: `libcudart.so.13` and `libcublas.so.13`

    How to mend: unset the variable for this process; the venv brings all that it needs but the driver.
    """
    environ = scene.observation.environ
    own = _own_libraries(scene)
    refused = _refused_preloads(scene)
    if refused:
        yield symptom(
            "library-path",
            "warning",
            f"LD_PRELOAD names {examples(refused)}, which the linker cannot load: it says so at every start, and goes on",
            stage=Stage.NEVER,
            evidence=[f"LD_PRELOAD={environ.get('LD_PRELOAD', '')}"],
            path=refused[0],
        )
    preloads = [
        each
        for each in re.split(r"[\s:]+", environ.get("LD_PRELOAD", ""))
        if each not in refused
        for name in (each.rpartition("/")[2],)
        if _concerns(name, own) or _is_base(name)
    ]
    if preloads:
        yield _library_symptom(
            scene,
            "LD_PRELOAD",
            {each.rpartition("/")[2]: each for each in preloads},
            f"LD_PRELOAD={environ['LD_PRELOAD']}",
        )
    folders = [folder.rstrip("/") for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    outside = [folder for folder in folders if not scene.relative(f"{folder}/")]
    found = {
        soname: path
        for soname, path in sorted(scene.observation.libraries.items())
        if path.rpartition("/")[0].rstrip("/") in outside and (_concerns(soname, own) or _is_base(soname))
    }
    if found and not _ran_without(scene, found.values()):
        yield _library_symptom(scene, "LD_LIBRARY_PATH", found, f"LD_LIBRARY_PATH={environ['LD_LIBRARY_PATH']}")
    yield from _other_drivers(scene, outside)
    mapped = {
        path.rpartition("/")[2]: path
        for path in (scene.traced.mapped if scene.traced else ())
        if not scene.relative(path) and "/site-packages/" not in path and _concerns(path.rpartition("/")[2], own)
    }
    if mapped:
        yield symptom(
            "library-path",
            "error" if scene.traced is not None and scene.traced.failed else "warning",
            f"{counted(len(mapped), 'library', 'libraries')} of CUDA {'was' if len(mapped) == 1 else 'were'} loaded from outside of the "
            f"venv: {examples(sorted(mapped.values()))}",
            stage=Stage.IMPORT,
            evidence=[f"the run mapped {path}" for path in sorted(mapped.values())],
            paths=mapped.values(),
            sonames=mapped,
            path=min(mapped.values()),
        )


def _other_drivers(scene: Scene, folders: Sequence[str]) -> Iterator[Symptom]:
    """NVIDIA's driver as a toolkit has it: stubs for its linker, and libraries for forward compatibility."""
    found = {
        soname: path
        for soname, path in sorted(scene.observation.libraries.items())
        if soname in _DRIVER and path.rpartition("/")[0].rstrip("/") in folders
    }
    for kind, what, severity, why in _OTHER_DRIVERS:
        here = {soname: path for soname, path in found.items() if kind.search(path)}
        if here:
            yield symptom(
                "library-path",
                severity,
                f"LD_LIBRARY_PATH puts {what} in the place of NVIDIA's driver: {examples(sorted(here.values()))}",
                stage=Stage.USE,
                evidence=[why, f"LD_LIBRARY_PATH={scene.observation.environ['LD_LIBRARY_PATH']}"],
                path=next(iter(here.values())),
                paths=here.values(),
                sonames=here,
            )


def _ran_without(scene: Scene, paths: Iterable[str]) -> bool:
    """Whether a run ended well with libraries of CUDA, and none of these was among them: a RPATH goes before the variable."""
    traced = scene.traced
    if traced is None or traced.failed:
        return False
    mapped = set(traced.mapped)
    names = {path.rpartition("/")[2] for path in paths}
    return not mapped & set(paths) and names <= {path.rpartition("/")[2] for path in mapped}


def _refused_preloads(scene: Scene) -> list[str]:
    """What LD_PRELOAD names and the linker said that it cannot load."""
    said = scene.traced.messages if scene.traced is not None else ()
    return sorted({found[1] for line in said if (found := _REFUSED.search(line)) is not None})


def _library_symptom(scene: Scene, variable: str, found: dict[str, str], setting: str) -> Symptom:
    own = _own_libraries(scene)
    owners = sorted({owner for soname in found if (owner := own.get(soname, ""))})
    those = "those of the venv" if any(not _is_base(soname) for soname in found) else "those of the system"
    return symptom(
        "library-path",
        "warning",
        f"{variable} puts {counted(len(found), 'library', 'libraries')} before {those}: {examples(sorted(found))}",
        packages=owners,
        stage=Stage.IMPORT,
        evidence=[*(f"{soname} is {path}" for soname, path in found.items()), setting],
        path=next(iter(found.values())),
        paths=found.values(),
        sonames=found,
    )


@rule("assembler-path")
def assembler_path(scene: Scene) -> Iterable[Symptom]:
    """No variable puts another assembler in the place of triton's.

    Severity: warning.

    Why: triton compiles with the `ptxas` that it brings, unless TRITON_PTXAS_PATH names one. An older one does not know the GPU
    (`ptxas fatal: Value 'sm_121a' is not defined`), or the PTX that this triton writes.

    Example:
        warning: TRITON_PTXAS_PATH puts `/usr/local/cuda-12.4/bin/ptxas` in the place of triton's own

    How to mend: unset it.
    """
    for variable in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        value = scene.observation.environ.get(variable, "")
        if value and "triton" in scene.wheels and not scene.relative(value):
            yield symptom(
                "assembler-path",
                "warning",
                f"{variable} puts `{value}` in the place of triton's own",
                packages=["triton"],
                stage=Stage.USE,
                evidence=[f"{variable}={value}"],
                path=value,
                paths=[value],
            )


@rule("cuda-home")
def cuda_home(scene: Scene) -> Iterable[Symptom]:
    """CUDA_HOME names a toolkit that is there, of the CUDA that torch is built for.

    Severity: warning; error where a run failed for want of its `nvcc`.

    Why: what is compiled when it is first used (flashinfer, DeepGEMM, extensions of torch) is compiled by the `nvcc` in CUDA_HOME and
    linked to the libraries of the venv. torch refuses an `nvcc` of another major; others do not look.

    Example:
        warning: CUDA_HOME is `/usr/local/cuda-12.8`, torch 2.11.0 is built for CUDA 13.0

    How to mend: set it to a toolkit of that CUDA, or unset it.
    """
    anchor = scene.closure.causes.anchor
    chain = scene.traced.chain if scene.traced is not None and scene.traced.failed else ()
    wanting = next((raised for raised in chain if _NO_COMPILER.search(f"{raised.message} {raised.path}")), None)
    if wanting is not None:
        yield _no_compiler(scene, wanting)
        return
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        value = scene.observation.environ.get(variable, "")
        found = _CUDA_IN_PATH.search(value)
        if found and anchor is not None and int(found[1]) != anchor.major:
            yield symptom(
                "cuda-home",
                "warning",
                f"{variable} is `{value}`, {anchor.label} is built for CUDA {anchor.release}",
                packages=["torch"] if anchor.wheel else [],
                stage=Stage.USE,
                evidence=[f"{variable}={value}"],
                path=value,
                paths=[value],
            )
            return


def _no_compiler(scene: Scene, raised: Raised) -> Symptom:
    """A run that wanted to compile for the GPU, and found no compiler."""
    environ = scene.observation.environ
    variable = next((name for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)), "")
    state = (
        f"{variable} is `{environ[variable]}`, where no `nvcc` is found"
        if variable
        else "CUDA_HOME is not set, and no `nvcc` is found"
    )
    anchor = scene.closure.causes.anchor
    return symptom(
        "cuda-home",
        "warning",
        f"{state}: what is compiled when it is first used needs a toolkit{f' for CUDA {anchor.release}' if anchor else ''}",
        stage=Stage.USE,
        evidence=[shown_raise(raised), *([f"{variable}={environ[variable]}"] if variable else [])],
        hint="install a toolkit of that CUDA and set CUDA_HOME to it, or use wheels with compiled kernels",
        path=environ.get(variable, ""),
        paths=[environ[variable]] if variable else [],
    )


@rule("driver-absent")
def driver_absent(scene: Scene) -> Iterable[Symptom]:
    """A machine that is to run packages for CUDA has NVIDIA's driver.

    Severity: info; it is a cause only where a run failed for want of it.

    Why: `libcuda.so.1` comes with the driver and from no wheel. Kernels that are linked to it cannot even be imported without, on a
    machine that only builds as in a container that was started without `--gpus`.

    Example:
        info: there is no NVIDIA driver here, so `libcuda.so.1`, which sglang-kernel 0.4.2 needs, is not found

    How to mend: install the driver, or start the container with the GPUs (`--gpus all`).
    """
    host = scene.observation.host
    libraries = scene.observation.libraries
    if host.get("driver") or host.get("gpus") or not libraries or "libcuda.so.1" in libraries:
        return
    needing = sorted(
        {
            wheel.facts.name
            for wheel in scene.closure.wheels
            if any("libcuda.so.1" in binary.needed for binary in wheel.facts.binaries.binaries)
        }
    )
    if needing:
        labels = [scene.label(name) for name in needing[:3]]
        devices = scene.observation.environ.get("NVIDIA_VISIBLE_DEVICES")
        none_given = devices is not None and devices in ("", "void", "none")
        yield symptom(
            "driver-absent",
            "info",
            f"there is no NVIDIA driver here, so `libcuda.so.1`, which {joined(labels)} need{'s' if len(labels) == 1 else ''}, is not found",
            packages=needing,
            stage=Stage.USE,
            evidence=[
                *([f"NVIDIA_VISIBLE_DEVICES={devices}: the container was given no GPU"] if none_given else []),
                *(f"{scene.label(name)} has libraries that need libcuda.so.1" for name in needing),
            ],
            sonames=_DRIVER,
        )


def _own_libraries(scene: Scene) -> dict[str, str]:
    """Soname of a library of CUDA or torch that the venv brings -> its project."""
    links = scene.closure.links
    return {
        name: links.wheel_of[path].facts.name
        for path, binary in links.linker.objects.items()
        for name in (binary.soname or binary.name,)
        if TOOLKIT_LIBRARY.fullmatch(name) or is_torch_library(name)
    }


def _is_base(soname: str) -> bool:
    """Whether a library is one of the system's that wheels rely on."""
    return soname in BASE_LIBRARIES and soname not in DRIVER_LIBRARIES


def _concerns(soname: str, own: dict[str, str]) -> bool:
    """Whether a library is one of CUDA's or torch's, in a venv that has some of its own."""
    return bool(own) and (TOOLKIT_LIBRARY.fullmatch(soname) is not None or is_torch_library(soname))
