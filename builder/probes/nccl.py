"""Probe: NCCL sums over all GPUs of the host, one process a GPU as in tensor parallelism, and the sums are right."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ABOUT = {
    "id": "nccl",
    "purpose": "All GPUs of the host find each other over NCCL, and all-reduce and all-gather give the right sums and parts on each.",
    "tolerance": "whole numbers exact; bf16 8e-3 of float64, as each hop rounds",
    "needs": {"gpus": 2, "modules": ["torch"]},
    "per": "host",
    "set": "full",
    "compiles": False,
    "seconds": {"quick": 120, "full": 180},
    "memory_bytes": 2_000_000_000,
}

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.probes import kit
else:
    import kit

START_S = 90
SIZES = (1, 1000, 1 << 20, 1 << 25)
"""Elements of what is summed."""


def cases(probe: kit.Probe) -> Iterator[kit.Case]:
    """The cases: the ranks run once, and each case reads what they found."""
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        yield kit.Case("ranks", partial(_skip, count=count))
        return
    ranks = functools.cache(lambda: run_ranks(probe, count))
    yield kit.Case("ranks", lambda found: found.note("ranks", len(ranks())))
    for size in SIZES:
        yield kit.Case(f"all-reduce-{size}", partial(judge, ranks=ranks, name=f"reduce-{size}"))
    yield kit.Case("all-reduce-bf16", partial(judge, ranks=ranks, name="bf16"))
    yield kit.Case("all-gather", partial(judge, ranks=ranks, name="gather"))


def _skip(found: kit.Found, count: int) -> None:
    del found
    raise kit.Skip(f"{count} GPU{'' if count == 1 else 's'} here, it needs 2")


def run_ranks(probe: kit.Probe, count: int) -> list[dict[str, Any]]:
    """One process a GPU; what each of them found."""
    folder = Path.cwd()
    environment = {
        **os.environ,
        # NVLink's multicast is memory of the switch, which all of a host's tenants share; what is probed here does without.
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    ranks = []
    begun = time.monotonic()
    for rank in range(count):
        order = {"rank": rank, "ranks": count, "folder": str(folder), "seed": probe.number("ranks")}
        with (folder / f"rank-{rank}.log").open("wb") as log:
            command = [sys.executable, "-X", "faulthandler", "-B", "-s", __file__, "--rank", json.dumps(order)]
            ranks.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    try:
        codes = [each.wait(timeout=max(1.0, START_S + 30 - (time.monotonic() - begun))) for each in ranks]
    except subprocess.TimeoutExpired:
        raise kit.Wrong(f"the ranks did not end in {START_S + 30} s: {_logs(folder, count)}") from None
    finally:
        for each in ranks:
            if each.poll() is None:
                each.kill()
                each.wait()
    if any(codes):
        raise kit.Wrong(f"ranks ended with {codes}: {_logs(folder, count)}")
    return [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(count)]


def _logs(folder: Path, count: int) -> str:
    texts = [
        (folder / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace").strip() for rank in range(count)
    ]
    return " | ".join(text[-400:] for text in texts if text)


def judge(found: kit.Found, ranks: Callable[[], list[dict[str, Any]]], name: str) -> None:
    """What the ranks found of one collective."""
    figures = [answer[name] for answer in ranks()]
    found.at_most("worst", max(figure["worst"] for figure in figures), 8e-3 if name == "bf16" else 0.0)
    if "rate" in figures[0]:
        found.note("bus", round(min(figure["rate"] for figure in figures), 2), "GB/s")


def be_rank(order: dict[str, Any]) -> None:
    """One rank: every collective, compared with what its own arithmetic says the others hold."""
    from datetime import timedelta

    import torch
    from torch import distributed

    rank, ranks, folder = order["rank"], order["ranks"], Path(order["folder"])
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    distributed.init_process_group(
        "nccl",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=START_S),
        device_id=device,
    )

    def whole(size: int, of: int) -> Any:
        # Numbers below 1024, so that their sums are exact in float32; each rank can tell the others'.
        places = torch.arange(size, device=device)
        return ((places * (2 * of + 3) + order["seed"] % 100_003 + 7919 * of) % 1021).float()

    answer: dict[str, dict[str, float]] = {}
    for size in SIZES:
        mine = whole(size, rank)
        distributed.all_reduce(mine)
        truth = sum(whole(size, of).double() for of in range(ranks))
        answer[f"reduce-{size}"] = {"worst": _worst(mine.double(), truth)}
    kept = torch.empty(SIZES[-1], device=device)
    seconds = _seconds(torch, lambda: distributed.all_reduce(kept.zero_()))
    answer[f"reduce-{SIZES[-1]}"]["rate"] = 2 * (ranks - 1) / ranks * 4 * kept.numel() / seconds / 1e9

    parts = [
        torch.randn(1 << 20, generator=torch.Generator().manual_seed(order["seed"] + of)).bfloat16()
        for of in range(ranks)
    ]
    mine = parts[rank].to(device, copy=True)
    distributed.all_reduce(mine)
    truth = sum(part.double() for part in parts).to(device)
    answer["bf16"] = {"worst": float((mine.double() - truth).norm() / truth.norm())}

    out = torch.full((ranks * 4099,), -1.0, device=device)
    distributed.all_gather_into_tensor(out, whole(4099, rank))
    answer["gather"] = {"worst": _worst(out.double(), torch.cat([whole(4099, of).double() for of in range(ranks)]))}
    distributed.barrier()
    torch.cuda.synchronize()
    (folder / f"rank-{rank}.json").write_text(json.dumps(answer), encoding="utf-8")
    # Taking a communicator down can hang; everything is written.
    os._exit(0)


def _worst(out: Any, truth: Any) -> float:
    return float((out - truth).abs().max())


def _seconds(torch: Any, work: Any) -> float:
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        be_rank(json.loads(sys.argv[2]))
    kit.main(ABOUT, cases)
