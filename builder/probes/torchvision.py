"""Probe: torchvision's compiled operators are there, are for the same CUDA as torch, and compute the right thing."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

ABOUT = {
    "id": "torchvision",
    "purpose": "torchvision's operators load beside torch, are built for the same CUDA, and nms and roi_align are right.",
    "tolerance": "nms exact; roi_align in float32 2e-5 of float64",
    "needs": {"gpus": 1, "modules": ["torch", "torchvision"]},
    "per": "gpu",
    "set": "quick",
    "compiles": False,
    "seconds": {"quick": 60, "full": 60},
    "memory_bytes": 1_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.probes import kit, mapped, references
else:
    import kit

    mapped, references = kit.neighbour("mapped"), kit.neighbour("references")


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases."""
    import torch

    try:
        import torchvision
    except Exception as error:  # noqa: BLE001 - what torchvision says is told, with the reason that it swallowed
        cause = mapped.unloadable_library(probe.site, "torchvision")
        raise kit.Wrong(f"{kit.reason_of(error)}; {cause or 'its libraries load'}") from None

    def case(name: str, what: Callable[..., None], **how: Any) -> kit.Case:
        return kit.Case(name, partial(what, probe=probe, torch=torch, torchvision=torchvision, **how))

    yield case("cuda", cuda)
    for count in (20, 1000, *((3000,) if probe.full else ())):
        yield case(f"nms-{count}", nms, count=count)
    for boxes, channels, side in ((5, 3, 20), (256, 256, 64)):
        yield case(f"roi-align-{boxes}x{channels}x{side}", roi_align, boxes=boxes, channels=channels, side=side)


def cuda(found: kit.Found, probe: kit.Probe, torch: Any, torchvision: Any) -> None:
    """The CUDA that each was built with; only the major version must agree, as torchvision itself asks."""
    del probe
    number = int(torch.ops.torchvision._cuda_version())
    own = f"{number // 1000}.{number % 1000 // 10}"
    found.note("version", str(torchvision.__version__))
    found.note("cuda", own)
    theirs = str(torch.version.cuda)
    same = own.partition(".")[0] == theirs.partition(".")[0]
    found.require(same, f"torchvision is built for CUDA {own}, torch for {theirs}")


def nms(found: kit.Found, probe: kit.Probe, torch: Any, torchvision: Any, *, count: int) -> None:
    """Non-maximum suppression of random boxes with whole corners, at a limit that no overlap is near."""
    chance = random.Random(probe.number(f"nms-{count}"))
    boxes = []
    for _ in range(count):
        x, y = chance.randrange(800), chance.randrange(800)
        boxes.append([float(x), float(y), float(x + chance.randrange(1, 200)), float(y + chance.randrange(1, 200))])
    scores = [place / count for place in chance.sample(range(count), count)]
    limit = 0.4
    kept, nearest = references.boxes_kept(boxes, scores, limit)
    while nearest < 1e-6:
        limit += 1e-4
        kept, nearest = references.boxes_kept(boxes, scores, limit)
    placed = [torch.tensor(part, device=kit.DEVICE) for part in (boxes, scores)]
    out = torchvision.ops.nms(*placed, limit).tolist()
    found.note("kept", len(kept))
    found.at_most("wrong", len(set(out) ^ set(kept)), 0)
    found.require(out == kept, "the boxes that stay are not those, or not in that order, that they ought to be")


def roi_align(
    found: kit.Found, probe: kit.Probe, torch: Any, torchvision: Any, *, boxes: int, channels: int, side: int
) -> None:
    """Regions of a map, sampled bilinearly; some reach over its edge."""
    chance = random.Random(probe.number(f"roi-{boxes}"))
    generator = probe.generator(f"roi-{boxes}", kit.DEVICE)
    x = torch.randn(2, channels, side, side, generator=generator, device=kit.DEVICE)
    rows = []
    for _ in range(boxes):
        corners = [chance.uniform(-4, 2 * side) for _ in range(2)]
        rows.append([float(chance.randrange(2)), *corners, *(corner + chance.uniform(1, side) for corner in corners)])
    regions = torch.tensor(rows, device=kit.DEVICE)
    kit.poison_pool(torch.empty(boxes, channels, 7, 7, device=kit.DEVICE))
    out = torchvision.ops.roi_align(x, regions, 7, spatial_scale=0.5, sampling_ratio=2, aligned=True)
    truth = references.roi_align(x, regions, size=7, scale=0.5, samples=2)
    # A corner in float32 is off by 1e-5 of a cell, which moves a sample by as much of its slope.
    kit.compare(found, out, truth, 2e-5, worst=1e-3)


if __name__ == "__main__":
    kit.main(ABOUT, cases)
