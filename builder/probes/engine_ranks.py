"""Probe: SGLang on several GPUs builds the same trees on every one of them, and says what it says on one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

ABOUT = {
    "id": "engine_ranks",
    "purpose": "Engines in tensor parallelism over 2, 4, 8 GPUs start; DDTREE's trees are the same on every rank, its answers those of one GPU.",
    "tolerance": "trees identical; equal tokens where the best two were never nearer than what rounding moves them; elsewhere within that",
    "needs": {"gpus": 2, "modules": ["torch", "sglang", "safetensors"]},
    "per": "host",
    "set": "full",
    "compiles": False,
    "seconds": {"quick": 480, "full": 600},
    "memory_bytes": 24_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.probes import engines, kit
else:
    import kit

    engines = kit.neighbour("engines")

RANKS = (2, 4, 8)
HEADS = 8
"""Each rank has at least one."""


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases. The plain engine on one GPU gives the reference; the plain one on several shows what another order of sums does."""
    import torch

    count = torch.cuda.device_count()
    if count < RANKS[0]:
        yield kit.Case("ranks", partial(_skip, count=count))
        return
    trial = engines.Trial(probe, heads=HEADS, kv_heads=HEADS)
    yield kit.Case("AR", partial(engines.plain, trial=trial))
    for ranks in RANKS:
        if ranks <= count:
            for name in ("AR", "DFLASH", "DDTREE"):
                yield kit.Case(
                    f"{name}-{ranks}", partial(engines.compare, trial=trial, name=f"{name}-{ranks}", batch=8)
                )
            yield kit.Case(f"trees-{ranks}", partial(trees, trial=trial, ranks=ranks))
    yield kit.Case("stop", partial(engines.stop, trial=trial))


def _skip(found: kit.Found, count: int) -> None:
    del found
    raise kit.Skip(f"{count} GPU{'' if count == 1 else 's'} here, it needs {RANKS[0]}")


def trees(found: kit.Found, trial: engines.Trial, ranks: int) -> None:
    """What each rank wrote of its trees."""
    folder = trial.trees(f"DDTREE-{ranks}")
    written = [(folder / f"rank-{rank}.txt") for rank in range(ranks)]
    digests = [file.read_text(encoding="utf-8").split() if file.is_file() else [] for file in written]
    found.note("trees", len(digests[0]))
    found.require(all(digests), f"ranks wrote {[len(each) for each in digests]} trees")
    least = min(map(len, digests))
    different = sum(len({each[at] for each in digests}) > 1 for at in range(least))
    found.at_most("different", different, 0)
    found.at_most("not_on_every_rank", max(map(len, digests)) - least, 0)


if __name__ == "__main__":
    kit.main(ABOUT, cases)
