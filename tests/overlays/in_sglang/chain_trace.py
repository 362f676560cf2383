"""Print what DFLASH does with and without parts of the series: resolved arguments, and every step of a run with made-up models.

    python chain_trace.py

The same bytes have to come out for the base wheel and for each prefix of the series.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import sys

import tiny_models
import worker
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

OURS = {"speculative_ddtree_budget", "speculative_ddtree_chain_seed"}
# Drawn anew, or made of the moment, at each start.
EVERY_TIME = {"random_seed", "nccl_port", "model_config"}


def arguments(**changes):
    resolved = dataclasses.asdict(tiny_models.arguments(speculative_algorithm="DFLASH", **changes))
    folder = str(tiny_models.FOLDER)  # another one each time
    return {
        name: repr(value).replace(folder, "models") for name, value in resolved.items() if name not in OURS | EVERY_TIME
    }


def steps():
    """Requests that come and go under DFLASH, with all that each step leaves behind."""
    world = worker.World(algorithm="DFLASH")
    chance = random.Random(9)
    waiting = [worker.Request(prompt, most=20) for prompt in worker.prompts(10, seed=6)]
    everyone = list(waiting)
    while waiting or world.requests:
        while waiting and len(world.requests) < 3 and (not world.requests or chance.random() < 0.6):
            world.admit(waiting.pop(0))
        result = world.round()
        yield [
            result.num_accepted_drafts_per_req_cpu,
            result.next_token_ids.tolist(),
            world.table.tolist(),
            world.allocator.free_pages.tolist(),
            world.draft_input.draft_seq_lens.tolist(),
            world.draft_input.ctx_lens.tolist(),
            hashlib.sha256(world.draft_store.numpy().tobytes()).hexdigest(),
        ]
        gone = [request for request in world.requests if request.finished()]
        if gone:
            world.dismiss(gone)
    yield [request.output_ids for request in everyone]


def main():
    """One line of JSON, after whatever SGLang printed."""
    trace = {
        "arguments": [
            arguments(),
            arguments(attention_backend="triton", speculative_dflash_block_size=4, max_running_requests=7),
            arguments(attention_backend="triton", speculative_dflash_draft_window_size=32, page_size=16),
        ],
        "steps": list(steps()),
        "members": [[member.name, member.value] for member in SpeculativeAlgorithm if member.name != "DDTREE"],
    }
    text = json.dumps(trace, sort_keys=True)
    summary = {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "steps": len(trace["steps"]),
        "parts": {part: hashlib.sha256(json.dumps(value).encode()).hexdigest() for part, value in trace.items()},
        "ddtree": hasattr(SpeculativeAlgorithm, "DDTREE"),
    }
    sys.stdout.write("\n" + json.dumps(summary) + "\n")


if __name__ == "__main__":
    main()
