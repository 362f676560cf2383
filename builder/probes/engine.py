"""Probe: SGLang's engine answers, and DFLASH and DDTREE say token for token what it says without a draft."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

ABOUT = {
    "id": "engine",
    "purpose": "Engines with a tiny random model start, and drafts by DFLASH and DDTREE do not change what greedy decoding says.",
    "tolerance": "equal tokens where the best two were never nearer than what rounding moves them, measured; elsewhere within that of the best",
    "needs": {"gpus": 1, "modules": ["torch", "sglang", "safetensors"]},
    "per": "gpu",
    "set": "full",
    "compiles": False,
    "seconds": {"quick": 480, "full": 480},
    "memory_bytes": 24_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.probes import engines, kit
else:
    import kit

    engines = kit.neighbour("engines")


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases. Engines start one after the other: kernels are compiled at the first start, and each would compile them."""
    import safetensors.torch
    import torch

    del torch, safetensors
    trial = engines.Trial(probe)
    yield kit.Case("AR", partial(engines.plain, trial=trial))
    for name in ("DFLASH", "DDTREE"):
        for batch in (1, 8):
            yield kit.Case(f"{name}-{batch}", partial(engines.compare, trial=trial, name=name, batch=batch))
    yield kit.Case("stop", partial(engines.stop, trial=trial))


if __name__ == "__main__":
    kit.main(ABOUT, cases)
