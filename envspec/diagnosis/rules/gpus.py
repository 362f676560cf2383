"""What keeps packages for CUDA from a GPU although all of them load: a build without CUDA, a variable that hides the devices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.cuda import TOOLKIT_LIBRARY, readable_symbol
from envspec.diagnosis.installed import inner_version
from envspec.diagnosis.registry import rule
from envspec.diagnosis.symptom import Stage, symptom
from envspec.diagnosis.telling import shown_raise
from envspec.wording import counted, joined

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.diagnosis.scene import Scene
    from envspec.diagnosis.symptom import Symptom

_WITHOUT_CUDA = re.compile(r"\+(cpu|rocm[\d.]*|xpu)\b")
_MISMATCH = re.compile(
    r"Driver/library version mismatch|unsupported display driver / cuda driver combination|[Ff]orward compatibility was attempted"
    r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|cudaErrorSystemDriverMismatch"
)
_USED_ON_GPUS = frozenset({"torchaudio", "torchvision", "xformers"})
"""Packages whose operators others call on a GPU. torchcodec is published without CUDA, and decodes on the processor."""

_OF_TORCH_FOR_CUDA = re.compile(r"lib(torch|c10)_cuda\.so")
_CUDA_SYMBOL = re.compile(r"4cuda|cuda[A-Z]")


@rule("cpu-build")
def cpu_build(scene: Scene) -> Iterable[Symptom]:
    """Torch and what is built on it are all for CUDA, or none is.

    Severity: error if torch is built without CUDA and a package needs its CUDA libraries; warning if torch is for CUDA and another
    package is built without.

    Why: `pip install torch --index-url .../cpu`, or an extra index that offers `+cpu`, brings a build that counts as the same version.
    Kernels then miss `libc10_cuda.so`; a torchvision without CUDA imports, and says `Could not run 'torchvision::nms' with arguments
    from the 'CUDA' backend` when it is used.

    Example:
        error: torch 2.11.0+cpu is built without CUDA, and sglang-kernel 0.4.2 is built for CUDA

    How to mend: install the same version from the index for CUDA.
    """
    torch = _stated(scene, "torch")
    if not torch:
        return
    if not _WITHOUT_CUDA.search(torch):
        if scene.closure.causes.anchor is None:
            return
        for name in sorted(_USED_ON_GPUS & scene.wheels.keys()):
            stated = _stated(scene, name)
            found = _WITHOUT_CUDA.search(stated)
            if found:
                yield symptom(
                    "cpu-build",
                    "warning",
                    f"{name} {stated} is built without CUDA, torch {torch} is built for CUDA {scene.closure.causes.anchor.release}",
                    packages=[name, "torch"],
                    stage=Stage.USE,
                    evidence=[*_evidence(scene, name), *_evidence(scene, "torch")],
                    modules=[f"torch.ops.{module}" for module in scene.modules_of_project(name)],
                )
        return
    needing: dict[str, list[str]] = {}
    for name, troubles in scene.closure.links.fatal.items():
        absent = {each.soname for each in troubles.missing if _is_of_cuda(each.soname)}
        unbound = {each.reference.name for each in troubles.unbound if _CUDA_SYMBOL.search(each.reference.name)}
        if name != "torch" and (absent or unbound):
            needing[name] = sorted(absent) or sorted(unbound)
    if needing:
        labels = joined([scene.label(name) for name in sorted(needing)][:3])
        yield symptom(
            "cpu-build",
            "error",
            f"torch {torch} is built without CUDA, and {labels} {'is' if len(needing) == 1 else 'are'} built for CUDA",
            packages=["torch", *sorted(needing)],
            stage=Stage.IMPORT,
            evidence=[
                *_evidence(scene, "torch"),
                *(
                    f"{scene.label(name)} needs `{readable_symbol(lacks[0])}`"
                    for name, lacks in sorted(needing.items())
                ),
            ],
            sonames=[lack for lacks in needing.values() for lack in lacks if ".so" in lack],
            symbols=[lack for lacks in needing.values() for lack in lacks if ".so" not in lack],
        )


@rule("devices-hidden")
def devices_hidden(scene: Scene) -> Iterable[Symptom]:
    """CUDA_VISIBLE_DEVICES leaves GPUs to see.

    Severity: info; it is a cause only where a run failed for want of a GPU.

    Why: a job's script, a service, or a notebook sets it once and for ever. `-1`, nothing, or the number of a GPU that the machine
    does not have hide all that follow: `No CUDA GPUs are available`, on a machine whose `nvidia-smi` shows eight.

    Example:
        info: CUDA_VISIBLE_DEVICES is `2`, and the machine has 2 GPUs, 0 to 1: no GPU is seen

    How to mend: unset it, or name a GPU that is there.
    """
    value = scene.observation.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = scene.observation.host.get("gpus")
    count = len(gpus) if isinstance(gpus, list) else 0
    if value is None or not count:
        return
    named = [each.strip() for each in value.split(",")]
    seen = 0
    for each in named:
        if (each.isascii() and each.isdigit() and int(each) >= count) or each in ("", "-1"):
            break  # this one, and all after it, are not seen
        seen += 1
    if seen == len(named):
        return
    has = f"the machine has {count} GPUs, 0 to {count - 1}" if count > 1 else "the machine has 1 GPU, number 0"
    yield symptom(
        "devices-hidden",
        "info",
        f"CUDA_VISIBLE_DEVICES is `{value}`, and {has}: {counted(seen, 'GPU') if seen else 'no GPU'} {'are' if seen > 1 else 'is'} seen",
        stage=Stage.USE,
        evidence=[f"CUDA_VISIBLE_DEVICES={value}", f"nvidia-smi lists {counted(count, 'GPU')}"],
    )


@rule("driver-mismatch")
def driver_mismatch(scene: Scene) -> Iterable[Symptom]:
    """The driver in the kernel and its libraries are of one version.

    Severity: error.

    Why: an upgrade of the driver replaces `libcuda.so.1` at once, and the module in the kernel at the next start. Until then
    `nvidia-smi` says `Driver/library version mismatch`, and CUDA error 803 or 804. A container with libraries of its own does the same.

    Example:
        error: the driver in the kernel and its libraries are of two versions: nvidia-smi says `Driver/library version mismatch`

    How to mend: restart the machine, or unload the driver's modules while no process uses them.
    """
    noted = [note for note in scene.observation.notes if _MISMATCH.search(note)]
    chain = scene.traced.chain if scene.traced is not None and scene.traced.failed else ()
    said = [shown_raise(raised) for raised in chain if _MISMATCH.search(raised.message)]
    if noted or said:
        reason = "nvidia-smi says `Driver/library version mismatch`" if noted else "CUDA refuses to start"
        yield symptom(
            "driver-mismatch",
            "error",
            f"the driver in the kernel and its libraries are of two versions (mismatch): {reason}",
            stage=Stage.USE,
            evidence=[*noted, *said],
            hint="restart the machine, or unload the driver's modules while no process uses them",
            sonames=["libcuda.so.1", "libnvidia-ml.so.1"],
        )


def _stated(scene: Scene, project: str) -> str:
    """The version of a package with its label, as its own files or its metadata say; empty if it is not there."""
    there = scene.chosen.get(project)
    if there is None:
        return ""
    label = inner_version(there)
    return label.value if label is not None and "+" in label.value else there.version


def _evidence(scene: Scene, project: str) -> list[str]:
    there = scene.chosen[project]
    label = inner_version(there)
    if label is not None and "+" in label.value:
        return [f"{label.path} says `{label.key} = '{label.value}'`"]
    return [f"{scene.shown(there.folder)}/METADATA says Version: {there.version}"]


def _is_of_cuda(soname: str) -> bool:
    return TOOLKIT_LIBRARY.fullmatch(soname) is not None or _OF_TORCH_FOR_CUDA.fullmatch(soname) is not None
