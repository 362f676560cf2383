"""Compiling Triton kernels for a GPU that is not there, with the environment's own Triton and ptxas, and what came of it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.probes import kit

COMPILE_TIMEOUT_S = 120


def arch_of(compute: str) -> int:
    """`9.0` as Triton writes it: 90."""
    major, _, minor = compute.partition(".")
    return int(major) * 10 + int(minor)


def target_name(compute: str) -> str:
    """What Triton asks ptxas for: with the instructions of exactly this chip from Hopper on."""
    arch = arch_of(compute)
    return f"sm_{arch}{'a' if arch >= 90 else ''}"


def ptxas_path(compute: str) -> str:
    """The assembler that Triton uses for a GPU."""
    from triton.backends.nvidia import compiler

    return str(compiler.get_ptxas(arch_of(compute)).path)


def compile_one(
    found: kit.Found,
    *,
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    compute: str,
) -> None:
    """Compile one kernel; figures are the registers of a thread, what it spills, and the code's size.

    Args:
        found: Where figures go.
        kernel: Of Triton.
        types: Of the arguments that are no constants.
        constants: Of the others.
        options: `num_warps` and such.
        compute: Compute capability.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    # As at a run: what torch allocates is aligned to 16 bytes at least, and sizes and strides are multiples of 16.
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if types.get(name, "").startswith("*") or name in ("size", "columns") or name.startswith("stride_")
    }
    source = ASTSource(kernel, signature, constexprs=dict(constants), attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", arch_of(compute), 32), options=dict(options))
    judge_cubin(found, made.asm["ptx"], made.asm["cubin"], compute)
    found.note("shared_memory", int(made.metadata.shared), "B")


def judge_cubin(found: kit.Found, ptx: str, cubin: bytes, compute: str) -> None:
    """Figures of compiled code, and whether it is for the GPU that it was made for."""
    target = target_name(compute)
    found.require(cubin[:4] == b"\x7fELF", "what ptxas wrote is no cubin")
    named = re.search(r"^\.target\s+(\S+?)[,\s]", ptx, re.MULTILINE)
    found.require(
        named is not None and named[1] == target, f"the code is for {named[1] if named else 'nothing'}, not {target}"
    )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        done = subprocess.run(
            [ptxas_path(compute), "-v", f"--gpu-name={target}", str(source), "-o", str(Path(folder, "kernel.cubin"))],
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
            check=False,
        )
    if done.returncode != 0:
        found.require(holds=False, otherwise=f"ptxas ended with rc {done.returncode}: {done.stderr.strip()[:400]}")
        return
    numbers = registers_and_spills(done.stdout + done.stderr)
    found.note("registers", numbers[0])
    found.note("spilled", numbers[1], "B")
    found.note("code", len(cubin), "B")
    found.require(0 < numbers[0] <= 255, f"ptxas says that a thread has {numbers[0]} registers")


def registers_and_spills(said: str) -> tuple[int, int]:
    """Registers of a thread and bytes that it stores for want of them, of what `ptxas -v` says; the most of all kernels."""
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", said)]
    spills = [int(number) for number in re.findall(r"(\d+) bytes spill stores", said)]
    return max(registers, default=0), max(spills, default=0)
