"""Probe: Triton compiles for the GPU with its own ptxas, and what it compiles computes the right thing."""

from __future__ import annotations

import os
import re
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ABOUT = {
    "id": "triton",
    "purpose": "Triton's own ptxas knows the GPU, and elementwise, reduction and matrix kernels in bf16 and fp8 compile and compute right.",
    "tolerance": "elementwise exact; sums and softmax 1e-5 of float64; products in bf16 4e-3, of fp8 2e-2; 15 % of the chip's rate in bf16",
    "needs": {"gpus": 1, "modules": ["torch", "triton"]},
    "per": "gpu",
    "set": "quick",
    "compiles": True,
    "seconds": {"quick": 120, "full": 240},
    "memory_bytes": 5_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.probes import compiling, kit, references
else:
    import kit

    compiling, references = kit.neighbour("compiling"), kit.neighbour("references")

BIG = 1 << 26
LEAST_SHARE = {"bf16": 0.15, "fp8": 0.05}
"""Of the chip's matrix rate: these kernels are plain ones, which a library's beat by far; Hopper wants fp8 laid out otherwise."""


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases; in compile mode for every compute capability of the lock."""
    work = kit.neighbour("tilework")
    for compute in probe.compute if probe.mode == "compile" else ("",):
        name = f"ptxas-{compute}" if compute else "ptxas"
        yield kit.Case(name, partial(ptxas, probe=probe, compute=compute))
    if probe.mode == "compile":
        for compute in probe.compute:
            for name, source in work.sources().items():
                yield kit.Case(
                    f"{name}-{compute}", partial(compiling.compile_one, compute=compute, **source), result="compiled"
                )
        return
    import torch

    def case(name: str, what: Callable[..., None], **how: Any) -> kit.Case:
        return kit.Case(name, partial(what, probe=probe, torch=torch, work=work, **how))

    for size in (1000, 1 << 20, BIG):
        yield case(f"add-{size}", add, size=size)
    for rows, columns in ((7, 100), (2048, 32768)):
        yield case(f"softmax-{rows}x{columns}", softmax, rows=rows, columns=columns)
    for kind in ("bf16", "fp8"):
        for size in (512, 8192):
            yield case(f"dot-{kind}-{size}", dot, kind=kind, size=size)


def ptxas(found: kit.Found, probe: kit.Probe, compute: str) -> None:
    """That the assembler is the environment's own and knows the GPU."""
    if not compute:
        compute = "{}.{}".format(*kit.capability())
    program = compiling.ptxas_path(compute)
    found.note("path", os.path.relpath(program, probe.prefix))
    found.require(
        probe.has(program),
        f"ptxas is {program}, not the environment's own: look at TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH",
    )
    target = compiling.target_name(compute)
    source = Path("knows.ptx")
    # As old a PTX as can name the chip: it is ptxas that is asked here, not what Triton writes.
    version = {100: "8.6", 103: "8.8", 110: "9.0", 120: "8.7", 121: "8.8"}.get(compiling.arch_of(compute), "8.0")
    text = f".version {version}\n.target {target}\n.address_size 64\n.visible .entry nothing() {{ ret; }}\n"
    source.write_text(text, encoding="ascii")
    told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    release = re.search(r"release (\S+?),? V(\S+)", told.stdout)
    if told.returncode != 0 or release is None:
        raise kit.Wrong(f"`ptxas --version` ended with rc {told.returncode} and says {told.stdout.strip()[:200]!r}")
    found.note("version", release[2])
    done = subprocess.run(
        [program, f"--gpu-name={target}", str(source), "-o", "knows.cubin"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise kit.Wrong(f"ptxas {release[2]} does not make code for {target}: {done.stderr.strip()[:400]}")
    made = Path("knows.cubin").read_bytes()
    found.require(made[:4] == b"\x7fELF", "what ptxas wrote is no cubin")


def add(found: kit.Found, probe: kit.Probe, torch: Any, work: Any, size: int) -> None:
    """Z = x + y, exactly: the sum of two integers that fit."""
    generator = probe.generator(f"add-{size}", kit.DEVICE)
    x, y = (
        torch.randint(-(1 << 20), 1 << 20, (size,), generator=generator, device=kit.DEVICE).float() for _ in range(2)
    )
    out = kit.poisoned(size, dtype=torch.float32, device=kit.DEVICE)
    grid = (-(-size // 1024),)
    work.add[grid](x, y, out, size, BLOCK=1024)
    kit.compare(found, out, x.double() + y.double(), 0.0, worst=0.0)
    if size >= BIG:
        seconds = kit.seconds_of(lambda: work.add[grid](x, y, out, size, BLOCK=1024))
        found.speed("memory", 12 * size / seconds / 1e9, "GB/s", "memory")


def softmax(found: kit.Found, probe: kit.Probe, torch: Any, work: Any, rows: int, columns: int) -> None:
    """Softmax and sum of rows."""
    x = torch.randn(rows, columns, generator=probe.generator(f"softmax-{rows}", kit.DEVICE), device=kit.DEVICE) * 3
    out = kit.poisoned(rows, columns, dtype=torch.float32, device=kit.DEVICE)
    sums = kit.poisoned(rows, dtype=torch.float32, device=kit.DEVICE)
    block = 1 << (columns - 1).bit_length()
    work.softmax[(rows,)](x, out, sums, columns, BLOCK=block, num_warps=16)
    kit.compare(found, out, x.double().softmax(-1), 1e-5)
    wide = x.double()
    # A sum may be near 0, so the error is held against the sum of the absolute values.
    off = (sums.double() - wide.sum(-1)).abs() / wide.abs().sum(-1)
    found.at_most("sum_error", float(off.max()), 1e-5)
    if rows >= 2048:
        seconds = kit.seconds_of(lambda: work.softmax[(rows,)](x, out, sums, columns, BLOCK=block, num_warps=16))
        found.note("memory", round(8 * rows * columns / seconds / 1e9, 1), "GB/s")


def dot(found: kit.Found, probe: kit.Probe, torch: Any, work: Any, kind: str, size: int) -> None:
    """A product of two square matrices."""
    if kind == "fp8":
        kit.need_capability((8, 9), "fp8")
    generator = probe.generator(f"dot-{kind}-{size}", kit.DEVICE)
    left, right = (torch.randn(size, size, generator=generator, device=kit.DEVICE).to(torch.bfloat16) for _ in range(2))
    if kind == "fp8":
        left, right = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn)
    out = kit.poisoned(size, size, dtype=torch.bfloat16, device=kit.DEVICE)

    work.run_dot(left, right, out, size)
    # Hopper adds products of fp8 with 13 bits or so.
    bound = 2e-2 if kind == "fp8" else 4e-3
    wide = (left.to(torch.bfloat16), right.to(torch.bfloat16))
    references.matmul(found, out, *wide, probe.generator(f"rows-{kind}-{size}"), bound=bound)
    if size >= 8192:
        found.speed(
            "rate",
            2 * size**3 / kit.seconds_of(lambda: work.run_dot(left, right, out, size)) / 1e12,
            "TFLOP/s",
            kind,
            least=LEAST_SHARE[kind],
        )


if __name__ == "__main__":
    kit.main(ABOUT, cases)
