"""Why a probe fails, most likely: what it said, beside what the checks and the lock know. Each cause carries the id of the check it belongs to.

A probe says what happened, a check says why it can happen. Neither proves the other, so a cause is called likely; what is measured (a library
that was mapped from elsewhere, a file that differs) comes before what is inferred from an error's text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envspec.gpu import how_any_runs, parse_capability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from envspec.lock import Lock, LockedPackage
    from envspec.probe import ProbeRun
    from envspec.receipt import Receipt

SHOWN = 4
"""Causes for one failure, at most."""

PACKAGE_OF_MODULE = {"sgl_kernel": "sglang-kernel", "flashinfer": "flashinfer-python"}
"""Modules that are not called like their package."""

_CUDA_LIBRARY = re.compile(
    r"(/[^\s'\"`,;:()]*/lib(?:cuda|cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nv[a-zA-Z]+|cupti|cufile)[A-Za-z_]*"
    r"[^\s'\"`,;:()/]*\.so[.0-9]*)"
)
_NUMERIC = re.compile(
    r"relative.error|max.error|mismatch|is nan|nan in|not equal|\bdiffers?\b|exceeds|the bound", re.IGNORECASE
)
_SLOW = re.compile(r"of what (?:the chip|it) can do|TFLOP/s|GB/s|throughput", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One likely cause."""

    check: str
    """The check that it belongs to; empty if none does."""

    message: str
    fix: str

    def line(self) -> str:
        """It for a person."""
        return f"{self.message}{f' [{self.check}]' if self.check else ''}; {self.fix}"

    def to_json(self) -> dict[str, Any]:
        """The record that `--json` prints."""
        return {"check": self.check or None, "message": self.message, "fix": self.fix}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    run: ProbeRun
    text: str
    """Everything that it said."""

    receipt: Receipt
    lock: Lock | None
    packages: tuple[str, ...]
    """Those that the probe is about."""

    def locked(self, name: str) -> LockedPackage | None:
        """A package of the lock."""
        packages = () if self.lock is None else self.lock.packages
        return next((package for package in packages if package.name == name), None)

    def installed(self, name: str) -> Mapping[str, Any]:
        """What a venv has in the place of a locked package, where it differs."""
        venv = self.receipt.fields.get("venv") or {}
        return next((row for row in venv.get("differ", ()) if row.get("package") == name), {})

    def label(self, name: str) -> str:
        """Name and version, as it is there."""
        there, package = self.installed(name), self.locked(name)
        version = there.get("version") or (package.version if package else "")
        return f"{name} {version}".strip()

    def cuda(self, name: str) -> str:
        """The CUDA of a package, as it is there; empty if nothing says it."""
        there, package = self.installed(name), self.locked(name)
        return str(there.get("cuda") or (package.cuda if package and not there else ""))

    @property
    def compute(self) -> str:
        """Compute capability of the GPU that it ran on."""
        gpus = self.receipt.host.get("gpus") or []
        index = self.run.gpu or 0
        return str(gpus[index].get("compute", "")) if index < len(gpus) else ""


def likely_causes(
    run: ProbeRun, receipt: Receipt, lock: Lock | None, modules: Mapping[str, tuple[str, ...]]
) -> tuple[Cause, ...]:
    """Why a run failed, the most likely cause first.

    Args:
        run: The run.
        receipt: That it is part of.
        lock: The lock, if it is known.
        modules: Id of a probe -> the modules that it is about.
    """
    said = [run.reason, *(case.reason for case in run.cases if case.result == "fail"), run.stderr]
    names = tuple(PACKAGE_OF_MODULE.get(module, module.replace("_", "-")) for module in modules.get(run.id, ()))
    failure = _Failure(run=run, text="\n".join(said), receipt=receipt, lock=lock, packages=names)
    found: dict[str, Cause] = {}
    for rule in _RULES:
        for cause in rule(failure):
            found.setdefault(cause.message, cause)
    return tuple(found.values())[:SHOWN]


def _foreign_library(failure: _Failure) -> Iterator[Cause]:
    """A CUDA library that lies outside of the environment, and is named."""
    prefix = str(failure.receipt.fields.get("prefix") or "/")
    variables: Mapping[str, str] = failure.receipt.fields.get("variables") or {}
    for path in dict.fromkeys(_CUDA_LIBRARY.findall(failure.text)):
        if "<scratch>" in path or (prefix != "/" and path.startswith(f"{prefix}/")) or "/site-packages/" in path:
            continue
        if re.search(r"/libcuda(?:debugger)?\.so|/libnvidia-", path):
            continue  # the driver's own
        folder = path.rpartition("/")[0]
        named = [
            name
            for name in ("LD_PRELOAD", "LD_LIBRARY_PATH")
            if any(part.rstrip("/") in (folder, path) for part in variables.get(name, "").replace(" ", ":").split(":"))
        ]
        how = f": {named[0]} names `{folder if named[0] == 'LD_LIBRARY_PATH' else path}`" if named else ""
        yield Cause(
            check="dual-cuda-runtime",
            message=f"`{path}` is loaded, which is not the environment's{how}",
            fix=f"take it out of {named[0]}" if named else "see what loads it (`LD_DEBUG=libs`)",
        )


def _drifted(failure: _Failure) -> Iterator[Cause]:
    """Files of its packages that are not what was built."""
    rows = [row for row in failure.receipt.fields.get("drift") or () if len(row) == 4]
    for package in dict.fromkeys(row[3] for row in rows if row[3] in failure.packages):
        paths = [str(row[1]) for row in rows if row[3] == package]
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield Cause(
            check="",
            message=f"{package} is not what was built: `{paths[0]}`{more}",
            fix="`envspec build --repair` makes it anew",
        )


def _not_locked(failure: _Failure) -> Iterator[Cause]:
    """Packages of a venv that are not the locked ones."""
    for package in failure.packages:
        row = failure.installed(package)
        if row:
            yield Cause(
                check="",
                message=f"{package} is not the locked one: {row.get('detail') or row.get('kind')}",
                fix="install what the lock has, or `envspec build`",
            )


def _other_line(failure: _Failure) -> Iterator[Cause]:
    """An operator that is not there: the extension that defines it was not loaded."""
    match = re.search(r"operator (\w+)::(\w+) does not exist|has no attribute ['`]_?(nms)['`]", failure.text)
    if match is None:
        return
    package = PACKAGE_OF_MODULE.get(match[1] or "", (match[1] or "torchvision").replace("_", "-"))
    yield from _cuda_conflict(failure, package, f"the library of {package} was not loaded")


def _cuda_conflict(failure: _Failure, package: str, else_said: str) -> Iterator[Cause]:
    mine, torch = failure.cuda(package), failure.cuda("torch")
    if mine and torch and mine.split(".")[0] != torch.split(".")[0]:
        yield Cause(
            check="cuda-major-mismatch",
            message=f"{failure.label(package)} is built for CUDA {mine}, {failure.label('torch')} for CUDA {torch}",
            fix=f"use the build of {package} for CUDA {torch}",
        )
    elif package in failure.packages:
        yield Cause(
            check="cuda-major-mismatch",
            message=f"{else_said}, as it happens where it is built for another CUDA or torch",
            fix="`envspec check` says what fits",
        )


def _symbol(failure: _Failure) -> Iterator[Cause]:
    match = re.search(r"([^\s:]+\.so[.0-9]*): undefined symbol: (\w+)", failure.text)
    if match is not None:
        torch = "torch" in match[2] or "c10" in match[2]
        yield Cause(
            check="torch-abi-mismatch" if torch else "undefined-symbol",
            message=f"`{match[1].rpartition('/')[2]}` needs `{match[2][:80]}`, which nothing loaded defines",
            fix="it was built for another torch" if torch else "`envspec check` says who should define it",
        )


def _library(failure: _Failure) -> Iterator[Cause]:
    match = re.search(r"(lib[\w.+-]+\.so[.0-9]*): cannot open shared object file", failure.text)
    if match is None:
        return
    cuda = re.match(r"lib(?:cudart|cublas(?:Lt)?|nvrtc)\.so\.(\d+)", match[1])
    toolkit = failure.lock.cuda_toolkit if failure.lock is not None else ""
    if cuda and toolkit and cuda[1] != toolkit.split(".")[0]:
        yield Cause(
            check="cuda-major-mismatch",
            message=f"something needs `{match[1]}` of CUDA {cuda[1]}, the lock has CUDA {toolkit}",
            fix="use the build for that CUDA",
        )
    elif match[1].startswith(("libcuda.so", "libnvidia-")):
        yield Cause(
            check="driver-too-old", message=f"the driver's `{match[1]}` is not found", fix="install the NVIDIA driver"
        )
    else:
        yield Cause(
            check="missing-library",
            message=f"`{match[1]}` is not found",
            fix="install what it is in, and declare it in [target]",
        )


def _no_image(failure: _Failure) -> Iterator[Cause]:
    if not re.search(
        r"no kernel image|cudaErrorNoKernelImage|CUDA_ERROR_NO_BINARY_FOR_GPU|invalid device function", failure.text
    ):
        return
    for name in failure.packages:
        package = failure.locked(name)
        code = () if package is None or failure.installed(name) else package.gpu_code
        compute = failure.compute
        try:
            covered = bool(code) and bool(compute) and how_any_runs(code, parse_capability(compute)) is not None
        except ValueError:
            covered = False
        if covered:
            continue
        there = f"has code for {', '.join(code)}" if code else "seems to have no code for it"
        yield Cause(
            check="gpu-code-missing",
            message=f"{failure.label(name)} {there}; this GPU has compute capability {compute or 'unknown'}",
            fix="use a build that covers it; `envspec check` lists what does",
        )


def _assembler(failure: _Failure) -> Iterator[Cause]:
    if not re.search(r"ptxas", failure.text, re.IGNORECASE):
        return
    variables: Mapping[str, str] = failure.receipt.fields.get("variables") or {}
    named = variables.get("TRITON_PTXAS_PATH") or variables.get("TRITON_PTXAS_BLACKWELL_PATH")
    if named:
        yield Cause(
            check="assembler-too-old",
            message=f"TRITON_PTXAS_PATH names `{named}`, which takes the place of triton's own ptxas",
            fix="unset it",
        )
    elif re.search(r"is not defined for option|unsupported|Unsupported \.version|fatal", failure.text):
        yield Cause(
            check="assembler-too-old",
            message=f"triton's ptxas does not know compute capability {failure.compute or 'of this GPU'}, or is not triton's",
            fix="`envspec verify --deep` says whether it is the locked one",
        )


def _driver(failure: _Failure) -> Iterator[Cause]:
    if re.search(
        r"driver version is insufficient|forward compatibility|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|driver.*too old"
        r"|unsupported PTX|UNSUPPORTED_PTX_VERSION",
        failure.text,
        re.IGNORECASE,
    ):
        driver = failure.receipt.host.get("driver") or "unknown"
        least = failure.lock.needs.driver if failure.lock is not None else ""
        needs = f", the lock needs {least} or later" if least else ""
        yield Cause(
            check="driver-too-old",
            message=f"the NVIDIA driver is {driver}{needs}",
            fix="upgrade it, or lock for an older CUDA",
        )


def _hardware(failure: _Failure) -> Iterator[Cause]:
    if re.search(
        r"uncorrectable ECC|CUDA_ERROR_ECC|Xid|fell off the bus|CUDA_ERROR_LAUNCH_TIMEOUT|hardware stack", failure.text
    ):
        yield Cause(
            check="", message="the GPU reports a fault of its own", fix="see `nvidia-smi -q` and the kernel's log (Xid)"
        )
    if re.search(r"out of memory|CUDA_ERROR_OUT_OF_MEMORY", failure.text, re.IGNORECASE):
        yield Cause(check="", message="the GPU has too little free memory", fix="see what else uses it (`nvidia-smi`)")


def _numbers(failure: _Failure) -> Iterator[Cause]:
    """Wrong results: of the patched package if there is one, else of the build or the GPU."""
    failed = [case for case in failure.run.cases if case.result == "fail"]
    beyond = any(
        figure.bound is not None and (isinstance(figure.value, str) or figure.value > figure.bound)
        for case in failed
        for figure in case.figures
    )
    if beyond or any(_NUMERIC.search(case.reason) for case in failed):
        overlays = () if failure.lock is None else failure.lock.overlays
        patched = [overlay for overlay in overlays if overlay.package in failure.packages]
        for overlay in patched:
            yield Cause(
                check="",
                message=f"{overlay.package} is patched here: {len(overlay.patches)} patches of `{overlay.series}`",
                fix="repeat the probe with one patch fewer",
            )
        if not patched:
            yield Cause(
                check="",
                message="a kernel computes something else than its reference",
                fix="repeat it on another GPU: if it is right there, this GPU is sick; else the build is wrong",
            )
    elif any(_SLOW.search(case.reason) for case in failed):
        yield Cause(
            check="",
            message="the GPU is slower than its kind",
            fix="see clocks, temperature and other users (`nvidia-smi -q`)",
        )


def _let_through(failure: _Failure) -> Iterator[Cause]:
    """What the lock says of the probe's packages."""
    for finding in () if failure.lock is None else failure.lock.findings:
        if finding.subject.partition(" ")[0] in failure.packages and finding.check.startswith(
            ("gpu-code", "cuda-", "torch-", "missing-", "undefined-", "driver-", "assembler-", "dual-", "no-fitting")
        ):
            waived = f" (waived: {finding.waived})" if finding.waived else ""
            yield Cause(
                check=finding.check, message=f"the lock let through: {finding.message}{waived}", fix="reconsider it"
            )


def _stopped(failure: _Failure) -> Iterator[Cause]:
    if "no end after" in failure.run.reason:
        yield Cause(
            check="",
            message="it hangs, or what it compiles takes longer than its limit",
            fix="repeat it: what was compiled is kept, so a second run is quicker",
        )


_RULES: tuple[Callable[[_Failure], Iterator[Cause]], ...] = (
    _foreign_library,
    _drifted,
    _other_line,
    _not_locked,
    _symbol,
    _library,
    _no_image,
    _assembler,
    _driver,
    _hardware,
    _numbers,
    _let_through,
    _stopped,
)
