"""Probe: what torch computes with cuBLAS, cuDNN and its own kernels, alone and in CUDA graphs, is right and as quick as the chip allows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

ABOUT = {
    "id": "torch",
    "purpose": "Memory, products in bf16, fp16, tf32 and fp8, attention, convolution, reductions and CUDA graphs give what float64 gives.",
    "tolerance": "products 4e-3 in 16 bits and tf32, 6e-3 in fp8 and for attention; sums 1e-6; sorts and copies exact; 40 % of the chip's rates",
    "needs": {"gpus": 1, "modules": ["torch"]},
    "per": "gpu",
    "set": "quick",
    "compiles": False,
    "seconds": {"quick": 120, "full": 300},
    "memory_bytes": 8_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.probes import kit, references
else:
    import kit

    references = kit.neighbour("references")

BOUND = 4e-3
"""16-bit results are rounded to 8 bits (bf16): 1.1e-3 in the norm; tf32 has 11 bits before it multiplies."""

FP8_BOUND = 6e-3
FP8_SHARE = 0.3
"""Of the chip's rate: sums are kept in float32, which costs Hopper a part of it."""

ATTENTION_BOUND = 6e-3
"""Its probabilities are rounded to 16 bits as well."""

HEAD = 128


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases."""
    import torch
    import torch.nn.attention
    import torch.nn.functional

    def case(name: str, what: Callable[..., None], **how: Any) -> kit.Case:
        return kit.Case(name, partial(what, probe=probe, torch=torch, **how))

    yield case("copy", copy)
    sizes = [(321, 257, 123), (2048, 2048, 2048), (8192, 8192, 8192)]
    if probe.full:
        sizes += [(4096, 11008, 4096), (16384, 16384, 16384), (1, 8192, 8192)]
    for kind in ("bf16", "fp16", "tf32", "fp8"):
        for size in sizes:
            m, n, k = (-(-side // 16) * 16 for side in size) if kind == "fp8" else size
            yield case(f"matmul-{kind}-{m}x{n}x{k}", matmul, kind=kind, m=m, n=n, k=k)
    for backend in ("flash", "efficient", "cudnn"):
        for shape, causal in (((2, 4, 333, 64), False), ((4, 16, 2048, HEAD), True)):
            name = "x".join(map(str, shape))
            yield case(f"attention-{backend}-{name}", attention, backend=backend, shape=shape, causal=causal)
    yield case("convolution-3x17x31", convolution, count=3, channels=17, side=31)
    yield case("convolution-16x256x56", convolution, count=16, channels=256, side=56)
    yield case("sum", total)
    yield case("softmax", softmax)
    yield case("layer-norm", layer_norm)
    yield case("sort", sort)
    yield case("graph", graph)


def copy(found: kit.Found, probe: kit.Probe, torch: Any) -> None:
    """Random bits, copied and compared, over as much memory as the probe may take."""
    size = min(kit.room(probe) // 2, (4 if probe.full else 2) * 10**9) // 8 // 1024 * 1024
    source = torch.empty(size, dtype=torch.int64, device=kit.DEVICE)
    source.random_(generator=probe.generator("copy", kit.DEVICE))
    out = kit.poisoned(size, dtype=torch.int64, device=kit.DEVICE)
    out.copy_(source)
    found.at_most("wrong_words", int((out != source).sum()), 0)
    found.note("size", 8 * size, "B")
    found.speed("memory", 16 * size / kit.seconds_of(lambda: out.copy_(source)) / 1e9, "GB/s", "memory")


def matmul(found: kit.Found, probe: kit.Probe, torch: Any, *, kind: str, m: int, n: int, k: int) -> None:
    """A product by cuBLASLt."""
    if kind == "fp8":
        kit.need_capability((8, 9), "fp8")
    name = f"{kind}-{m}x{n}x{k}"
    left, right, work, out = product(torch, kind, m, n, k, probe.generator(name, kit.DEVICE), kit.DEVICE)
    # Odd sides are what cuBLAS itself has kernels for.
    torch.backends.cuda.preferred_blas_library("default" if m % 8 or n % 8 or k % 8 else "cublaslt")
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    try:
        work()
        bound = FP8_BOUND if kind == "fp8" else BOUND
        references.matmul(found, out, left, right, probe.generator(f"rows-{name}"), bound=bound)
        if m * n * k >= 8192**3:
            found.speed(
                "rate",
                2 * m * n * k / kit.seconds_of(work) / 1e12,
                "TFLOP/s",
                kind,
                least=FP8_SHARE if kind == "fp8" else kit.LEAST_SHARE,
            )
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.preferred_blas_library("default")


def product(
    torch: Any, kind: str, m: int, n: int, k: int, generator: Any, device: str
) -> tuple[Any, Any, Callable[[], Any], Any]:
    """Operands of a product as they count, how to compute it, and where the result will be."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp8": torch.float8_e4m3fn}[kind]
    left = torch.randn(m, k, generator=generator, device=device).to(dtype)
    columns = torch.randn(n, k, generator=generator, device=device).to(dtype)
    if kind != "fp8":
        out = kit.poisoned(m, n, dtype=dtype, device=device)
        right = columns.t().contiguous()
        return left, right, lambda: torch.matmul(left, right, out=out), out
    # Rows of the left, columns of the right: the one layout that fp8 has everywhere.
    out = kit.poisoned(m, n, dtype=torch.bfloat16, device=device)
    one = torch.ones((), device=device)
    wide = (left.to(torch.bfloat16), columns.t().to(torch.bfloat16))

    def work() -> Any:
        return torch._scaled_mm(left, columns.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=False, out=out)

    return (*wide, work, out)


def attention(
    found: kit.Found, probe: kit.Probe, torch: Any, *, backend: str, shape: tuple[int, ...], causal: bool
) -> None:
    """Scaled dot product attention by one backend."""
    backends = torch.nn.attention.SDPBackend
    chosen = {
        "flash": backends.FLASH_ATTENTION,
        "efficient": backends.EFFICIENT_ATTENTION,
        "cudnn": backends.CUDNN_ATTENTION,
    }[backend]
    generator = probe.generator(f"attention-{shape}", kit.DEVICE)
    q, k, v = (torch.randn(shape, generator=generator, device=kit.DEVICE).to(torch.bfloat16) for _ in range(3))

    def work() -> Any:
        with torch.nn.attention.sdpa_kernel(chosen):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    kit.poison_pool(q)
    out = work()
    truth = torch.stack([references.attention(*one, causal=causal) for one in zip(q, k, v, strict=True)])
    kit.compare(found, out, truth, ATTENTION_BOUND)
    # The reference itself, by another processor.
    here = [part[0, -1].cpu() for part in (q, k, v)]
    found.at_most(
        "reference_error", kit.errors(truth[0, -1].cpu(), references.attention(*here, causal=causal))[0], 1e-10
    )
    if shape[2] >= 2048:
        batch, heads, rows, width = shape
        work_done = 4 * batch * heads * rows * rows * width / (2 if causal else 1)
        found.speed("rate", work_done / kit.seconds_of(work) / 1e12, "TFLOP/s", "bf16", least=0.0)


def convolution(found: kit.Found, probe: kit.Probe, torch: Any, *, count: int, channels: int, side: int) -> None:
    """A 3x3 convolution by cuDNN."""
    generator = probe.generator(f"convolution-{side}", kit.DEVICE)
    x = torch.randn(count, channels, side, side, generator=generator, device=kit.DEVICE).to(torch.bfloat16)
    weight = (torch.randn(channels, channels, 3, 3, generator=generator, device=kit.DEVICE) / 3).to(torch.bfloat16)
    found.require(torch.backends.cudnn.is_available(), "torch says that cuDNN is not available")
    found.note("cudnn", str(torch.backends.cudnn.version()))

    def work() -> Any:
        return torch.nn.functional.conv2d(x, weight, padding=1)

    kit.poison_pool(x)
    kit.compare(found, work(), torch.cat([references.convolution(each, weight) for each in x.split(1)]), BOUND)
    if channels >= 256:
        rate = 2 * 9 * count * channels * channels * side * side / kit.seconds_of(work) / 1e12
        found.speed("rate", rate, "TFLOP/s", "bf16", least=0.0)


def total(found: kit.Found, probe: kit.Probe, torch: Any) -> None:
    """The sum of many numbers."""
    size = min(kit.room(probe) // 4, 1 << 30) // 4
    x = torch.rand(size, generator=probe.generator("sum", kit.DEVICE), device=kit.DEVICE)
    out = kit.poisoned(1, dtype=torch.float32, device=kit.DEVICE)

    def work() -> Any:
        return torch.sum(x, dim=0, keepdim=True, out=out)

    work()
    kit.compare(found, out, torch.stack([part.double().sum() for part in x.split(1 << 24)]).sum().view(1), 1e-6)
    found.speed("memory", 4 * size / kit.seconds_of(work) / 1e9, "GB/s", "memory", least=0.2)


def softmax(found: kit.Found, probe: kit.Probe, torch: Any) -> None:
    """Softmax over a vocabulary."""
    x = torch.randn(512, 151936, generator=probe.generator("softmax", kit.DEVICE), device=kit.DEVICE) * 4
    kit.poison_pool(x)
    kit.compare(found, x.softmax(-1), x.double().softmax(-1), 1e-5)


def layer_norm(found: kit.Found, probe: kit.Probe, torch: Any) -> None:
    """Normalisation of rows."""
    x = (
        torch.randn(4096, 8192, generator=probe.generator("layer-norm", kit.DEVICE), device=kit.DEVICE).to(
            torch.bfloat16
        )
        + 1
    )
    kit.poison_pool(x)
    out = torch.nn.functional.layer_norm(x, (8192,), eps=1e-6)
    kit.compare(found, out, torch.nn.functional.layer_norm(x.double(), (8192,), eps=1e-6), BOUND)


def sort(found: kit.Found, probe: kit.Probe, torch: Any) -> None:
    """A sort, the place of the greatest, and the best few."""
    x = torch.randn(1 << 24, generator=probe.generator("sort", kit.DEVICE), device=kit.DEVICE)
    kit.poison_pool(x, torch.empty(x.shape, dtype=torch.int64, device=kit.DEVICE))
    values, places = x.sort()
    found.at_most("disorder", int((values[1:] < values[:-1]).sum()), 0)
    found.at_most("moved", int((x[places] != values).sum()), 0)
    seen = torch.zeros_like(places).index_fill_(0, places, 1)
    found.at_most("lost", int((seen == 0).sum()), 0)
    found.require(float(x.max()) == float(values[-1]), "max is not the last of the sorted")
    found.require(bool((x.topk(100).values == values.flip(0)[:100]).all()), "topk is not the last of the sorted")
    found.require(float(x[x.argmax()]) == float(values[-1]), "argmax is not where the greatest is")


def graph(found: kit.Found, probe: kit.Probe, torch: Any) -> None:
    """A few kernels captured once and replayed with other inputs."""
    generator = probe.generator("graph", kit.DEVICE)
    x, weight = (torch.randn(512, 1024, generator=generator, device=kit.DEVICE).to(torch.bfloat16) for _ in range(2))
    bias = torch.randn(512, generator=generator, device=kit.DEVICE).to(torch.bfloat16)

    def step() -> Any:
        return torch.nn.functional.linear(x, weight, bias).relu()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = step()
    for trial in range(3):
        x.copy_(torch.randn(512, 1024, generator=generator, device=kit.DEVICE))
        out.fill_(float("nan"))
        captured.replay()
        truth = (x.double() @ weight.double().t() + bias.double()).relu()
        kit.compare(found, out, truth, BOUND, name=f"replay_{trial}_")
    found.note("replay", round(kit.seconds_of(captured.replay) * 1e6, 1), "us")


if __name__ == "__main__":
    kit.main(ABOUT, cases)
