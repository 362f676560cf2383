"""Probe: torch.compile turns functions into kernels of Triton that give what float64 gives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

ABOUT = {
    "id": "torch_compile",
    "purpose": "Inductor generates Triton kernels for this GPU: a fused normalisation, a product with its activation, and a changing shape.",
    "tolerance": "16-bit results 8e-3 of float64, since what is fused is rounded where it was not",
    "needs": {"gpus": 1, "modules": ["torch", "triton"]},
    "per": "gpu",
    "set": "full",
    "compiles": False,
    "seconds": {"quick": 240, "full": 240},
    "memory_bytes": 2_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.probes import kit, references
else:
    import kit

    references = kit.neighbour("references")

BOUND = 8e-3


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases."""
    import torch

    def case(name: str, what: Callable[..., None]) -> kit.Case:
        return kit.Case(name, partial(what, probe=probe, torch=torch))

    yield case("norm-and-gate", norm_and_gate)
    yield case("linear-gelu", linear_gelu)
    yield case("changing-shape", changing_shape)


def norm_and_gate(found: kit.Found, probe: kit.Probe, torch: Any) -> None:
    """A normalisation and a gated activation, fused to kernels of our own making."""
    x, weight = _normal(torch, probe, "norm", (2048, 8192), (8192,))

    def function(x: Any, weight: Any) -> Any:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
        gate, up = normed.chunk(2, dim=-1)
        return (torch.nn.functional.silu(gate) * up).to(x.dtype)

    compiled = _compiled(found, torch, function, x, weight)
    truth = references.silu_and_mul(references.rms_norm(x, weight, 1e-6))
    kit.compare(found, compiled(x, weight), truth, BOUND)


def linear_gelu(found: kit.Found, probe: kit.Probe, torch: Any) -> None:
    """A product, whose bias and activation are fused."""
    x, weight, bias = _normal(torch, probe, "linear", (512, 1024), (2048, 1024), (2048,))

    def function(x: Any, weight: Any, bias: Any) -> Any:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias), approximate="tanh")

    compiled = _compiled(found, torch, function, x, weight, bias)
    truth = torch.nn.functional.gelu(x.double() @ weight.double().t() + bias.double(), approximate="tanh")
    kit.compare(found, compiled(x, weight, bias), truth, BOUND)


def changing_shape(found: kit.Found, probe: kit.Probe, torch: Any) -> None:
    """One function, called with rows of several numbers and lengths."""

    def function(x: Any) -> Any:
        return torch.softmax(x.float() * 0.5, dim=-1).sum(0)

    compiled = torch.compile(function, dynamic=True)
    for rows, columns in ((3, 100), (64, 1000), (65, 777)):
        (x,) = _normal(torch, probe, f"shape-{rows}", (rows, columns))
        truth = torch.softmax(x.double() * 0.5, dim=-1).sum(0)
        kit.compare(found, compiled(x), truth, 1e-4, name=f"rows_{rows}_")


def _compiled(found: kit.Found, torch: Any, function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """A function compiled and called once, with Triton kernels to show for it."""
    from torch._inductor import metrics

    metrics.reset()
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True)
    compiled(*arguments)
    kernels = int(metrics.generated_kernel_count)
    found.note("kernels", kernels)
    return compiled


def _normal(torch: Any, probe: kit.Probe, name: str, *shapes: tuple[int, ...]) -> list[Any]:
    generator = probe.generator(name, kit.DEVICE)
    return [torch.randn(shape, generator=generator, device=kit.DEVICE).to(torch.bfloat16) for shape in shapes]


if __name__ == "__main__":
    kit.main(ABOUT, cases)
