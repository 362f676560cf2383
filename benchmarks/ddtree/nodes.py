"""Logits of the nodes of dumped trees against forwards of their paths."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.ddtree import model


def node_errors(dump: dict[str, Any], plain: model.Weights, shape: model.Shape) -> list[dict[str, Any]]:
    """For each request of a dump: how far the logits of its nodes are from those of their paths, in standard deviations."""
    out = []
    logits = dump["logits"].view(*dump["tokens"].shape, -1)
    for index, known in enumerate(dump["known"]):
        prefix = int(dump["prefix"][index])
        parents, tokens = dump["parents"][index].tolist(), dump["tokens"][index].tolist()
        count = int(dump["nodes"][index]) + 1
        paths = []
        for row in range(count):
            path, at = [], row
            while at >= 0:
                path.append(tokens[at])
                at = parents[at]
            paths.append([*known[:prefix], *reversed(path)])
        longest = max(map(len, paths))
        device = plain["embed"].device
        ids = torch.tensor([path + [0] * (longest - len(path)) for path in paths], device=device)
        ends = torch.tensor([len(path) - 1 for path in paths], device=device)
        with torch.no_grad():
            hidden, _ = model.target_stream(plain, shape, ids)
            truth = (hidden[torch.arange(count, device=device), ends] @ plain["lm_head"].T).cpu()
        mine = logits[index, :count]
        scale = truth.std(-1)
        errors = (mine - truth).abs().amax(-1) / scale
        turned = (mine[1:] - truth[1:].roll(1, 0)).abs().amax(-1) / scale[1:]
        depths = [len(path) - 1 - prefix for path in paths]
        out.append(
            {
                "nodes": count,
                "deepest": max(depths),
                "root": errors[0].item(),
                "worst_node": errors.max().item(),
                "wrong_path": turned.median().item(),
                "same_best": int((mine.argmax(-1) == truth.argmax(-1)).sum()),
                "positions_exact": [prefix + depth for depth in depths] == dump["positions"][index][:count].tolist(),
            }
        )
    return out
