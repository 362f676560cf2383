"""Probe: flashinfer compiles its kernels with a toolkit of the right CUDA, and its decode and its prefill with a mask are right."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ABOUT = {
    "id": "flashinfer",
    "purpose": "The host's nvcc is of the lock's CUDA, kernels compile with it, and paged decode and prefill with a tree's mask are right.",
    "tolerance": "attention in bf16 6e-3 of float64, and off by more than 2e-2 with a causal mask; 20 % of the chip's memory rate in decode",
    "needs": {"gpus": 1, "modules": ["torch", "flashinfer"]},
    "per": "gpu",
    "set": "full",
    "compiles": False,
    "seconds": {"quick": 420, "full": 420},
    "memory_bytes": 6_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.probes import kit, references
else:
    import kit

    references = kit.neighbour("references")

BOUND = 6e-3
CONTROL = 2e-2
WORKSPACE = 128 * 1024 * 1024
HEADS, KV_HEADS, WIDTH = 8, 2, 128


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases."""
    # flashinfer calls `ninja`, which is a program of the environment.
    os.environ["PATH"] = os.pathsep.join((str(Path(probe.prefix, "bin")), os.environ.get("PATH", os.defpath)))
    import flashinfer
    import torch

    def case(name: str, what: Callable[..., None], **how: Any) -> kit.Case:
        return kit.Case(name, partial(what, probe=probe, torch=torch, flashinfer=flashinfer, **how))

    yield case("toolkit", toolkit)
    for requests, longest in ((3, 70), (17, 900), (64, 8192)):
        yield case(f"decode-{requests}x{longest}", decode, requests=requests, longest=longest)
    for rows, prefixes in ((9, (0, 5)), (64, (1, 63, 64)), (130, (17, 300, 2049))):
        yield case(f"prefill-mask-{rows}-{'+'.join(map(str, prefixes))}", prefill, rows=rows, prefixes=prefixes)


def toolkit(found: kit.Found, probe: kit.Probe, torch: Any, flashinfer: Any) -> None:
    """What compiles: nvcc where flashinfer looks for it, a host compiler, ninja."""
    from flashinfer.jit import cpp_ext

    found.note("version", str(flashinfer.__version__))
    try:
        home = cpp_ext.get_cuda_path()
    except RuntimeError as error:
        raise kit.Wrong(
            f"there is no CUDA toolkit to compile with: {error}: install nvcc {probe.toolkit} or set CUDA_HOME"
        ) from error
    nvcc = os.environ.get("FLASHINFER_NVCC", str(Path(home, "bin/nvcc")))
    found.note("nvcc", nvcc)
    try:
        told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except OSError as error:
        raise kit.Wrong(f"{nvcc} cannot be run: {error}: install nvcc {probe.toolkit} or set CUDA_HOME") from error
    release = re.search(r"release (\d+)\.(\d+)", told)
    if release is None:
        raise kit.Wrong(f"`{nvcc} --version` says {told.strip()[-200:]!r}")
    found.note("nvcc_version", f"{release[1]}.{release[2]}")
    wanted = (probe.toolkit or str(torch.version.cuda)).partition(".")[0]
    found.require(
        release[1] == wanted,
        f"nvcc is of CUDA {release[1]}.{release[2]}, the lock's toolkit is {probe.toolkit or torch.version.cuda}",
    )
    for program in (os.environ.get("CXX", "c++"), "ninja"):
        found.require(shutil.which(program), f"there is no `{program}` in PATH, which compiling needs")


def decode(found: kit.Found, probe: kit.Probe, torch: Any, flashinfer: Any, *, requests: int, longest: int) -> None:
    """One new token a request, against keys in pages of 16."""
    name = f"decode-{requests}-{longest}"
    chance = random.Random(probe.number(name))
    generator = probe.generator(name, kit.DEVICE)
    page = 16
    lengths = [longest if longest > 4000 else chance.randrange(1, longest) for _ in range(requests)]
    pages = [-(-length // page) for length in lengths]
    starts = [0, *itertools.accumulate(pages)]
    order = torch.randperm(starts[-1], generator=generator, device=kit.DEVICE).to(torch.int32)
    keys, values = (_normal(torch, generator, starts[-1], page, KV_HEADS, WIDTH) for _ in range(2))
    q = _normal(torch, generator, requests, HEADS, WIDTH)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(_workspace(torch), "NHD")
    begun = time.monotonic()
    wrapper.plan(
        _ints(torch, starts),
        order,
        _ints(torch, [length - page * (count - 1) for length, count in zip(lengths, pages, strict=True)]),
        HEADS,
        KV_HEADS,
        WIDTH,
        page,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    out = kit.poisoned(requests, HEADS, WIDTH, dtype=torch.bfloat16, device=kit.DEVICE)
    wrapper.run(q, (keys, values), out=out)
    torch.cuda.synchronize()
    found.note("first", round(time.monotonic() - begun, 1), "s")
    truth = []
    for number, length in enumerate(lengths):
        own = order[starts[number] : starts[number + 1]].long()
        both = [
            part[own].flatten(0, 1)[:length].repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1)
            for part in (keys, values)
        ]
        truth.append(references.attention(q[number].unsqueeze(1), *both).squeeze(1))
    kit.compare(found, out, torch.stack(truth), BOUND)
    if longest > 4000:
        moved = 4 * KV_HEADS * WIDTH * sum(lengths)
        seconds = kit.seconds_of(lambda: wrapper.run(q, (keys, values), out=out))
        found.speed("memory", moved / seconds / 1e9, "GB/s", "memory", least=0.2)


def prefill(
    found: kit.Found, probe: kit.Probe, torch: Any, flashinfer: Any, *, rows: int, prefixes: tuple[int, ...]
) -> None:
    """The rows of a tree a request, behind ragged prefixes, one key a page as in SGLang; and with a causal mask, which must differ."""
    name = f"prefill-{rows}-{prefixes}"
    chance = random.Random(probe.number(name))
    generator = probe.generator(name, kit.DEVICE)
    requests = len(prefixes)
    lengths = [before + rows for before in prefixes]
    starts = [0, *itertools.accumulate(lengths)]
    slots = torch.randperm(starts[-1], generator=generator, device=kit.DEVICE)
    pool = [_normal(torch, generator, starts[-1], 1, KV_HEADS, WIDTH) for _ in range(2)]
    q = _normal(torch, generator, requests * rows, HEADS, WIDTH)
    trees = [references.random_parents(rows, chance) for _ in prefixes]
    masks = [
        torch.cat((torch.ones(rows, before, dtype=torch.bool), torch.tensor(references.ancestors(tree))), dim=1)
        for before, tree in zip(prefixes, trees, strict=True)
    ]
    mask = torch.cat([each.flatten() for each in masks]).to(kit.DEVICE)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(_workspace(torch), "NHD", backend="fa2")

    def run(**which: Any) -> Any:
        wrapper.plan(
            _ints(torch, [rows * number for number in range(requests + 1)]),
            _ints(torch, starts),
            slots.to(torch.int32),
            _ints(torch, [1] * requests),
            HEADS,
            KV_HEADS,
            WIDTH,
            1,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
            **which,
        )
        out = kit.poisoned(requests * rows, HEADS, WIDTH, dtype=torch.bfloat16, device=kit.DEVICE)
        wrapper.run(q, tuple(pool), out=out)
        return out

    begun = time.monotonic()
    out = run(custom_mask=mask)
    torch.cuda.synchronize()
    found.note("first", round(time.monotonic() - begun, 1), "s")
    every = [[part[slots[start:end], 0] for part in pool] for start, end in itertools.pairwise(starts)]
    fresh = [
        torch.cat([each[part][before:] for each, before in zip(every, prefixes, strict=True)]) for part in range(2)
    ]
    before_all = [tuple(part[:before] for part in each) for each, before in zip(every, prefixes, strict=True)]
    truth = references.tree_attention(q, fresh[0], fresh[1], before_all, trees, sees=references.ancestors)
    kit.compare(found, out, truth, BOUND)
    control = kit.errors(run(causal=True), truth)[0]
    found.note("error_if_causal", control)
    found.require(control > CONTROL, f"a causal mask gives nearly the same ({control:.2g}): the mask is not used")


def _normal(torch: Any, generator: Any, *shape: int) -> Any:
    return torch.randn(shape, generator=generator, device=kit.DEVICE).to(torch.bfloat16)


def _ints(torch: Any, values: list[int]) -> Any:
    return torch.tensor(values, dtype=torch.int32, device=kit.DEVICE)


def _workspace(torch: Any) -> Any:
    return torch.zeros(WORKSPACE, dtype=torch.uint8, device=kit.DEVICE)


if __name__ == "__main__":
    kit.main(ABOUT, cases)
