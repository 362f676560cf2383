"""Copies of CUDA's libraries that wheels bring along."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from envspec.checks.registry import check
from envspec.checks.wording import counted, evidence, examples
from envspec.cuda import TOOLKIT_LIBRARY
from envspec.facts import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envspec.checks.closure import Closure

_DIGEST = re.compile(r"[.-][0-9a-f]{8,}(?=\.so)")


@check("bundled-cuda")
def bundled_cuda(closure: Closure) -> Iterable[Finding]:
    """Copies of CUDA's libraries in wheels that are not NVIDIA's are listed.

    Tools that make wheels portable copy what a binary needs into it, under a name with a digest.

    Severity: info. Two CUDAs that differ in their major version are `cuda-major-mismatch`'s or `dual-cuda-runtime`'s.

    Why: a copy is not mended when the package of NVIDIA is upgraded, and a second runtime of the same major version keeps its own
    state: it sees the same devices, but not the other one's streams and handles.

    Example:
        info: torchvision 0.26.0 brings 2 libraries of CUDA along: `torchvision.libs/libcudart.8d5f5b7b.so.13` and
        `torchvision.libs/libnvjpeg.02b6d700.so.13`

    How to mend: nothing; it is the package's way.
    """
    for wheel in closure.wheels:
        if wheel.facts.name.startswith("nvidia-"):
            continue
        paths = sorted(
            wheel.shown_path(binary.path)
            for binary in wheel.facts.binaries.binaries
            if binary.is_loadable and TOOLKIT_LIBRARY.fullmatch(_DIGEST.sub("", binary.name))
        )
        if paths:
            yield Finding(
                check="bundled-cuda",
                severity="info",
                subject=wheel.label,
                message=f"{wheel.label} brings {counted(len(paths), 'library', 'libraries')} of CUDA along: {examples(paths)}",
                evidence=evidence(paths),
                packages=(wheel.facts.name,),
                path=paths[0],
            )
