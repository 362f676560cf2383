"""Looks into SGLang's scheduler process, for tests and profiles only.

`install` reads one environment variable, `DDTREE_PROBE`, a comma-separated list of

- `dump=FOLDER`: the first verified trees with their logits, as `tree-<n>.pt`;
- `pool=FILE`: before a cache flush, the state of the KV pool, one JSON object a line;
- `stages=FILE`: time of each stage of a round, with the device waited for at both ends; written after every 64 rounds;
- `host=FILE`: likewise, time that the host spends in each stage, the device not waited for;
- `rounds=FILE`: likewise, time of whole rounds only, and of the gaps between them, the device not waited for;
- `trace=FILE`: once the file `FILE.go` is there, PyTorch's profiler over TRACED_ROUNDS rounds, as `FILE` (gzip, for a trace viewer).

Patches are put in place when SGLang's module is imported, since the scheduler's process imports it after this one.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]

VARIABLE = "DDTREE_PROBE"
DUMPED_ROUNDS = 6
TRACED_ROUNDS = 8


class _PatchingLoader(importlib.abc.Loader):
    """Runs a module as its own loader would, then patches it."""

    def __init__(self, inner: importlib.abc.Loader, patch: Patch) -> None:
        self.inner, self.patch = inner, patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        self.patch(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be patched."""

    def __init__(self, patches: Mapping[str, Patch]) -> None:
        self.patches = dict(patches)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self.patches.pop(fullname, None)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _PatchingLoader(spec.loader, patch)
        return spec


def install(environment: Mapping[str, str]) -> None:
    """Puts the probes in place that the environment asks for."""
    asked = dict(item.split("=", 1) for item in environment.get(VARIABLE, "").split(",") if item)
    patches: dict[str, list[Patch]] = defaultdict(list)
    if "dump" in asked:
        patches["sglang.srt.speculative.dflash_info"].append(functools.partial(_dump_trees, Path(asked["dump"])))
    if "pool" in asked:
        patches["sglang.srt.managers.scheduler"].append(functools.partial(_watch_pool, Path(asked["pool"])))
    if "stages" in asked:
        patches["sglang.srt.speculative.dflash_worker"].append(functools.partial(_time_stages, Path(asked["stages"])))
    if "host" in asked:
        patches["sglang.srt.speculative.dflash_worker"].append(
            functools.partial(_time_stages, Path(asked["host"]), wait=False)
        )
    if "trace" in asked:
        patches["sglang.srt.speculative.dflash_worker"].append(functools.partial(_trace, Path(asked["trace"])))
    if "rounds" in asked:
        patches["sglang.srt.speculative.dflash_worker"].append(functools.partial(_time_rounds, Path(asked["rounds"])))

    def all_of(list_of: list[Patch]) -> Patch:
        def patch(module: ModuleType) -> None:
            for one in list_of:
                one(module)

        return patch

    if patches:
        sys.meta_path.insert(0, _Finder({name: all_of(several) for name, several in patches.items()}))


def _dump_trees(folder: Path, module: ModuleType) -> None:
    import torch

    inner = module.DFlashVerifyInput.verify
    folder.mkdir(parents=True, exist_ok=True)
    done = 0

    def verify(self: Any, *, batch: Any, logits_output: Any, **more: Any) -> Any:
        nonlocal done
        tree = getattr(self, "tree", None)
        if done < DUMPED_ROUNDS and tree is not None and len(batch.reqs[0].output_ids) > 1:
            torch.save(
                {
                    "tokens": self.draft_token.view(len(batch.reqs), -1).cpu(),
                    "parents": tree.parents.cpu(),
                    "nodes": tree.num_nodes.cpu(),
                    "positions": self.positions.view(len(batch.reqs), -1).cpu(),
                    "logits": logits_output.next_token_logits.float().cpu(),
                    "prefix": batch.seq_lens.cpu(),
                    "known": [[*req.origin_input_ids, *req.output_ids] for req in batch.reqs],
                },
                folder / f"tree-{done}.pt",
            )
            done += 1
        return inner(self, batch=batch, logits_output=logits_output, **more)

    module.DFlashVerifyInput.verify = verify


def _watch_pool(file: Path, module: ModuleType) -> None:
    import torch

    inner = module.Scheduler.flush_cache

    def flush_cache(self: Any, *arguments: Any, **more: Any) -> Any:
        allocator = self.token_to_kv_pool_allocator
        free = torch.cat([allocator.free_pages, allocator.release_pages])
        state = {
            "total": int(self.max_total_num_tokens),
            "available": int(allocator.available_size()),
            "evictable": int(self.tree_cache.evictable_size()),
            "protected": int(self.tree_cache.protected_size()),
            "free_slots": int(free.numel()),
            "different_free_slots": int(free.unique().numel()),
            "free_requests": len(self.req_to_token_pool.free_slots),
            "request_slots": int(self.req_to_token_pool.size),
            "idle": bool(self.is_fully_idle()),
        }
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(state) + "\n")
        return inner(self, *arguments, **more)

    module.Scheduler.flush_cache = flush_cache


class _Clock:
    """Sums of times by name."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.times: dict[str, list[float]] = defaultdict(list)

    def wrap(self, owner: Any, name: str, *, wait: Callable[[], None], label: str = "") -> None:
        """Replaces a function by one that is timed; nothing when there is none."""
        from torch.profiler import record_function as record

        inner = getattr(owner, name, None)
        if inner is None or not callable(inner):
            return

        @functools.wraps(inner)
        def timed(*arguments: Any, **more: Any) -> Any:
            wait()
            start = time.perf_counter()
            with record(label or name):
                result = inner(*arguments, **more)
            wait()
            self.times[label or name].append(time.perf_counter() - start)
            return result

        setattr(owner, name, timed)

    def write(self) -> None:
        """Medians and counts, in milliseconds."""
        report = {
            name: {
                "calls": len(times),
                "median_ms": sorted(times)[len(times) // 2] * 1e3,
                "mean_ms": sum(times) / len(times) * 1e3,
            }
            for name, times in self.times.items()
            if times
        }
        self.file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _time_stages(file: Path, module: ModuleType, *, wait: bool = True) -> None:
    import torch

    clock = _Clock(file)
    _wrap_stages(clock, module, torch.cuda.synchronize if wait else _go_on)


def _go_on() -> None:
    """In place of waiting."""


def _wrap_stages(clock: _Clock, module: ModuleType, wait: Callable[[], None]) -> None:
    worker = module.DFlashWorker
    for name in (
        "_append_target_hidden_to_draft_kv",
        "_prepare_for_speculative_decoding",
        "_greedy_sample_from_vocab_parallel_head",
        "_draft_candidates",
        "_finish_round",
        "_append_tree_path_to_draft_kv",
    ):
        clock.wrap(worker, name, wait=wait)
    clock.wrap(getattr(module, "_TreeRound", None), "replay", wait=wait, label="graphs")
    for name in ("draft_topk", "build_tree", "tree_positions"):
        clock.wrap(module, name, wait=wait)
    info = sys.modules["sglang.srt.speculative.dflash_info"]
    for name in ("tree_visibility", "pack_mask", "tree_mask"):
        clock.wrap(info, name, wait=wait)
    for name in ("prepare_for_verify", "verify", "_decide_rows", "_walk_trees", "_upload_commit"):
        clock.wrap(module.DFlashVerifyInput, name, wait=wait)
    inner = worker.forward_batch_generation
    hooked: set[int] = set()

    def forward(self: Any, batch: Any, **more: Any) -> Any:
        if id(self) not in hooked:
            hooked.add(id(self))
            clock.wrap(self.draft_model_runner, "forward", wait=wait, label="draft_forward")
            clock.wrap(self.target_worker, "forward_batch_generation", wait=wait, label="target_forward")
            for label, runner in (("draft", self.draft_model_runner), ("target", self.model_runner)):
                for name in ("replay_prepare", "replay"):
                    clock.wrap(getattr(runner, "graph_runner", None), name, wait=wait, label=f"{label}_{name}")
        extend = batch.forward_mode.is_extend() or batch.is_extend_in_batch
        wait()
        start = time.perf_counter()
        result = inner(self, batch, **more)
        wait()
        clock.times["prefill" if extend else "round"].append(time.perf_counter() - start)
        if not extend and len(clock.times["round"]) % 64 == 0:
            clock.write()
        return result

    worker.forward_batch_generation = forward


def _time_rounds(file: Path, module: ModuleType) -> None:
    clock = _Clock(file)
    inner = module.DFlashWorker.forward_batch_generation
    ended = 0.0

    def forward(self: Any, batch: Any, **more: Any) -> Any:
        nonlocal ended
        extend = batch.forward_mode.is_extend() or batch.is_extend_in_batch
        start = time.perf_counter()
        if not extend and ended:
            clock.times["between"].append(start - ended)
        result = inner(self, batch, **more)
        now = time.perf_counter()
        if not extend:
            clock.times["round"].append(now - start)
            if len(clock.times["round"]) % 64 == 0:
                clock.write()
        ended = 0.0 if extend else time.perf_counter()
        return result

    module.DFlashWorker.forward_batch_generation = forward


def _trace(file: Path, module: ModuleType) -> None:
    import torch

    go = file.with_name(file.name + ".go")
    inner = module.DFlashWorker.forward_batch_generation
    profiler: Any = None
    left = TRACED_ROUNDS

    def forward(self: Any, batch: Any, **more: Any) -> Any:
        nonlocal profiler, left
        if left == 0 or batch.forward_mode.is_extend() or batch.is_extend_in_batch or not go.exists():
            return inner(self, batch, **more)
        if profiler is None:
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            profiler = torch.profiler.profile(activities=activities)
            profiler.start()
        with torch.profiler.record_function("round"):
            result = inner(self, batch, **more)
        left -= 1
        if left == 0:
            torch.cuda.synchronize()
            profiler.stop()
            profiler.export_chrome_trace(str(file))
        return result

    module.DFlashWorker.forward_batch_generation = forward
