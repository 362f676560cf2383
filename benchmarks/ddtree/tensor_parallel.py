"""DDTREE on several GPUs: the same trees on every rank, and what one GPU says.

    python -m benchmarks.ddtree.tensor_parallel --models FOLDER --out FILE [--ranks 2]

The plain engine on one GPU gives the reference. With more GPUs the sums of a layer are rounded in another order, so the plain engine on all of
them is asked too: it is the control.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.ddtree import report
from benchmarks.ddtree.engines import Engine, algorithm, leave_on_term, start_all
from benchmarks.ddtree.harness import NEW_TOKENS
from benchmarks.ddtree.lossless import Lossless

OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""NVLink's multicast is memory of the switch, which all of a host's tenants share."""


class TensorParallel(Lossless):
    """The checks."""

    def engines(self) -> list[Engine]:
        """One plain engine on one GPU, and one of each kind on all."""
        pair, args = self.pair, self.args
        graphs: dict[str, Any] = {"cuda_graph_bs": [1, 2, 3, 8]}
        many = {"tp_size": args.ranks, **graphs}

        def engine(name: str, arguments: dict[str, Any], probe: str = "") -> Engine:
            environment = OFF | ({"DDTREE_PROBE": probe} if probe else {})
            return Engine(
                name=name,
                arguments=arguments,
                log=args.logs / f"{name}.log",
                site=str(args.site or ""),
                environment=environment,
            )

        tree = {"budget": args.budget, **many}
        return [
            engine("ar", algorithm(pair, "AR", **graphs)),
            engine("ar-tp", algorithm(pair, "AR", **many)),
            engine("dflash-tp", algorithm(pair, "DFLASH", **many)),
            engine("ddtree-tp", algorithm(pair, "DDTREE", **tree), f"trees={args.scratch}/graphs"),
            engine("ddtree-tp-eager", algorithm(pair, "DDTREE", graphs=False, **tree), f"trees={args.scratch}/eager"),
        ]

    def run(self) -> None:
        """Every check; one that fails to run is noted and the next goes on."""
        self.args.scratch.mkdir(parents=True, exist_ok=True)
        self.alive, failed = start_all(self.engines(), timeout_s=self.args.start_seconds, prime=2)
        self.result |= {"ranks": self.args.ranks, "engines": sorted(self.alive), "failed": failed}
        self.save()
        try:
            self.note("reference", self.make_reference)
            self.note("equal: on several GPUs", self.check_ranks)
            self.note("trees of all ranks", self.check_trees)
            self.note("margin", self.check_margin)
        finally:
            for engine in self.alive.values():
                engine.stop()
            self.save()

    def check_ranks(self) -> dict[str, Any]:
        """Each engine on all GPUs against the plain one on one GPU."""
        names: list[str] = [
            name for name in ("ar-tp", "dflash-tp", "ddtree-tp", "ddtree-tp-eager") if name in self.alive
        ]
        chosen = list(range(len(self.prompts)))

        def one(name: str) -> list[dict[str, Any]]:
            rows = []
            for batch in (1, 8):
                outputs = self.alive[name].generate(self.prompts, new_tokens=NEW_TOKENS, concurrency=batch)
                rows.append({"engine": name, "batch": batch, **self.compare(f"{name}/{batch}", chosen, outputs)})
            return rows

        # One engine after the other: ranks wait for each other in kernels, so two engines on the same GPUs stop each other for time slices.
        rows = [row for name in names for row in self.each([name], one)]
        return {"passed": len(names) == 4 and all(row["passed"] for row in rows), "rows": rows}

    def check_trees(self) -> dict[str, Any]:
        """The digests that each rank has written, one after the other."""
        rows = []
        for kind in ("graphs", "eager"):
            files = sorted((self.args.scratch / kind).glob("rank-*.txt"))
            trees = [file.read_text(encoding="utf-8").split() for file in files]
            same = len(trees) == self.args.ranks and len(set(map(tuple, trees))) == 1
            rows.append(
                {
                    "kind": kind,
                    "passed": same and len(trees[0]) > 0,
                    "ranks": len(trees),
                    "trees": [len(each) for each in trees],
                    "different": len(set(trees[0])) if trees else 0,
                }
            )
        return {"passed": all(row["passed"] for row in rows), "rows": rows}


def main() -> None:
    """Reads the command line and checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--site", type=Path, help="folder with the patched sglang; the installed one if left out")
    parser.add_argument("--budget", type=int, default=63)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--start-seconds", type=float, default=240)
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    parser.add_argument("--scratch", type=Path, default=Path("scratch"))
    args = parser.parse_args()
    leave_on_term()
    harness = TensorParallel(args)
    harness.run()
    print(report.checks_table(harness.result["checks"]))
    print(json.dumps({"failed": harness.result["failed"]}))


if __name__ == "__main__":
    main()
