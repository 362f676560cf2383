"""Spoilt copies of `dflash_info.py` and `dflash_worker.py`, each of which a check of `worker.py` must find."""

from __future__ import annotations

from pathlib import Path

import worker

INFO, WORKER = worker.info, worker.module

# What is wrong -> (module, text, text that takes its place).
MUTANTS = {
    "no mask for trees": (
        INFO,
        "        if self.is_tree:\n            # Without a mask",
        "        if False:\n            # Without a mask",
    ),
    "the path's slots by row": (
        INFO,
        "kept.extend(i * width + row for row in rows)",
        "kept.extend(i * width + row for row in range(len(rows)))",
    ),
    "one row too many is kept": (INFO, "rows = path[:commit_len]", "rows = path[: commit_len + 1]"),
    "rejected rows are not freed": (
        INFO,
        "batch.token_to_kv_pool_allocator.free(batch.out_cache_loc[other_rows])",
        "pass",
    ),
    "accepted rows are freed": (INFO, "free(batch.out_cache_loc[other_rows])", "free(batch.out_cache_loc[kept_rows])"),
    "the slots stay as they were allocated": (
        INFO,
        "batch.out_cache_loc = batch.out_cache_loc[kept_rows]",
        "batch.out_cache_loc = batch.out_cache_loc[: len(kept_rows)]",
    ),
    "hidden states by row": (INFO, "hidden.index_select(0, kept_rows)", "hidden[: len(kept_rows)]"),
    "decisions of another row": (
        INFO,
        "decided = decided.view(shape).to(torch.int64)\n",
        "decided = decided.view(shape).to(torch.int64).roll(1, 1)\n",
    ),
    "seeds of another position": (INFO, "positions = self.positions[rows]", "positions = self.positions[rows] + 1"),
    "seeds of another request": (INFO, "sampling_info.sampling_seed[i : i + 1]", "sampling_info.sampling_seed[:1]"),
    "the temperature of nobody": (INFO, "/ sampling_info.temperatures[i]", "/ 1.0"),
    "sampled requests are greedy": (
        INFO,
        "if sampling_info is None or sampling_info.is_all_greedy:\n            if self.packed",
        "if True:\n            if self.packed",
    ),
    "the draft is as wide as the tree": (
        WORKER,
        "        if self.is_ddtree:\n            # The draft runs blocks",
        "        if False:\n            # The draft runs blocks",
    ),
    "the root's draft row is a level": (
        WORKER,
        "draft_hidden[:, 1:, :].reshape(-1, hidden_size)",
        "draft_hidden[:, :-1, :].reshape(-1, hidden_size)",
    ),
    "positions of the chain": (
        WORKER,
        "positions=tree_positions(tree, prefix_lens),",
        "positions=(prefix_lens[:, None] + torch.arange(tree.num_rows)).reshape(-1),",
    ),
    "a chain is verified in place of the tree": (
        WORKER,
        "        if self.is_ddtree:\n            verify_input",
        "        if False:\n            verify_input",
    ),
    "graphs whatever the mask": (
        WORKER,
        "            or verify_input.custom_mask.numel() <= buffer.numel()",
        "            or True",
    ),
    "graphs are gone for good": (
        WORKER,
        "        finally:\n            runner.graph_runner = graph_runner",
        "        finally:\n            pass",
    ),
    "the target is not looked at": (
        WORKER,
        "            check_ddtree_runtime(target_worker.model_runner)",
        "            pass",
    ),
}


def put(module, text):
    exec(compile(text, module.__file__, "exec"), module.__dict__)
    if module is INFO:
        WORKER.DFlashVerifyInput, WORKER.DFlashDraftInput = INFO.DFlashVerifyInput, INFO.DFlashDraftInput
    worker.stand_in()


def a_check_fails():
    for name in [name for name in vars(worker) if name.startswith("check_")]:
        try:
            vars(worker)[name]()
        except Exception:  # noqa: BLE001 - whatever it is, it was found
            return True
    return False


def check_every_spoilt_copy_is_found():
    wrong = []
    for name, (module, old, new) in MUTANTS.items():
        source = Path(module.__file__).read_text(encoding="utf-8")
        if source.count(old) != 1:
            wrong.append(f"{name}: the file has {source.count(old)} places for this change")
            continue
        try:
            put(module, source.replace(old, new))
            if not a_check_fails():
                wrong.append(f"{name}: every check passed")
        finally:
            put(module, source)
    assert not a_check_fails(), "the files are not what they were"
    assert not wrong, "\n".join(wrong)
